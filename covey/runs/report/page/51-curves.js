// Every metric, in the order of the algorithm: sample, score, update.

function curvesView() {
  const node = h('div.view.curves'), body = h('div');
  let wanted = '';
  const build = () => {
    const names = metricNames().filter((name) => matches(name, wanted));
    const taken = new Set();
    const panels = PANELS.map(([title, note, pattern]) => {
      const mine = names.filter((name) => !taken.has(name) && pattern.test(name));
      mine.forEach((name) => taken.add(name));
      const moving = wanted ? mine : mine.filter((name) => !isConstant(name)), still = mine.filter((name) => !moving.includes(name));
      return mine.length > 0 && section(title, note, h('div.grid', {}, chartsOf(moving, !wanted && !severalRuns())), constants(still));
    });
    fill(body, panels, !names.length && empty('No curve', wanted ? `No metric matches “${wanted}”.` : 'Nothing has been logged yet.'));
  };
  const sample = currentRun();
  fill(node, h('div.toolbar', {}, searchField('find a metric', (value) => { wanted = value; build(); }),
    axisChoice(sample), smoothSlider(),
    h('label.check', {}, h('input', {type: 'checkbox', on: {change: (e) => { app.logarithmic = e.target.checked; emit('curves'); }}}), 'logarithmic')), body);
  build();
  listen('rebuild', node, build);
  let known = metricNames().length;
  listen('data', node, () => { if (metricNames().length !== known) { known = metricNames().length; build(); } });
  return node;
}

/** A chart per metric; those that belong together in one, where the first of them stands. */
function chartsOf(names, together) {
  const groups = together ? [...TOGETHER, ...byKind(names)].filter(([, members]) => members.filter(([name]) => names.includes(name)).length > 1) : [];
  return names.map((name) => {
    const group = groups.find(([, members]) => members.some(([member]) => member === name));
    if (!group) return metricChart(name);
    const first = names.find((n) => group[1].some(([member]) => member === n));
    return first === name ? togetherChart(...group) : null;
  });
}

/** Whether a metric has had one and the same value in every run, over enough steps to say so. */
function isConstant(name) {
  const values = shownRuns().flatMap((run) => run.curves.metrics[name] || []).filter((v) => v !== null);
  return values.length > 4 && values.every((v) => v === values[0]);
}

/** Metrics that never changed, in one line each instead of a chart. */
function constants(names) {
  if (!names.length) return null;
  const value = (name) => formatOf(name)(lastOf(shownRuns().map((run) => lastOf(run.curves.metrics[name] || []))));
  return h('details.constants', {}, h('summary', {}, `${count(names.length, 'metric')} that never changed`),
    h('dl', {}, names.map((name) => [h('dt', {}, name), h('dd', {}, value(name))])));
}

function matches(name, wanted) {
  const text = (name + ' ' + metricTitle(name)).toLowerCase();
  return wanted.toLowerCase().split(/\s+/).every((part) => text.includes(part));
}

function axisChoice(run) {
  const axes = [['step', 'steps'], ['hours', 'hours'], run.curves.metrics.num_tokens && ['tokens', 'M tokens']].filter(Boolean);
  return choice('horizontal axis', axes, app.x, (value) => { app.x = value; emit('curves'); });
}

function smoothSlider() {
  const node = h('input', {type: 'range', min: 0, max: 1, step: 0.05, value: app.smooth, 'aria-label': 'smoothing',
    on: {input: () => { app.smooth = Number(node.value); emit('curves'); }}});
  return h('label.slider', {}, 'smooth', node);
}
