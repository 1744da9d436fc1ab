// The first look: where the run stands, what is wrong, and the curves that matter most.

function overview() {
  const node = h('div.view.overview');
  const build = () => {
    const run = currentRun();
    fill(node, figures(run), severalRuns() && comparison(),
      h('div.main-and-side', {},
        h('div.main', {}, rewardSection(run), distributionSection(run)),
        h('aside.side', {}, hintSummary(run), timeSection(run), nowSection(run))),
      perReward(run), perTask(run));
  };
  build();
  listen('rebuild', node, build);
  listen('data', node, () => fill(node.querySelector('.figures'), figureList(currentRun())));
  return node;
}

function figures(run) { return h('div.figures', {}, figureList(run)); }

function figureList(run) {
  const speed = speedOf(run);
  return [
    evaluationSets(run).slice(-3).map((set) => evaluationFigure(run, set)), // whether it learned, before how it trained
    figure('reward', run, 'reward', number, true),
    figure('length', run, 'completions/mean_length', (v) => number(v), null, 'tokens'),
    run.curves.metrics['tools/call_frequency'] && figure('calls', run, 'tools/call_frequency', number, null, 'per completion'),
    figure('groups with signal', run, 'frac_reward_zero_std', (v) => percent(1 - v), null),
    run.curves.metrics.kl && figure('KL to the reference', run, 'kl', number, null),
    speed && h('div.figure', {}, h('span.figure-name', {}, 'speed'), h('strong', {}, number(speed.tokens), h('small', {}, ' tokens/s')),
      h('span.figure-note', {}, duration(speed.step) + ' a step')),
  ];
}

/** A number with its course. `good`: whether rising is good, null for neither. */
function figure(title, run, name, format, good, unit) {
  const found = lateAndEarly(run, name);
  if (!found || found.late === null) return null;
  const change = found.late - found.early;
  const kind = good === null || Math.abs(change) < 1e-9 ? '' : (change > 0) === good ? '.better' : '.worse';
  const shown = name === 'frac_reward_zero_std' ? `${percent(1 - found.early)} at first` : `${signed(change)} since the start`;
  return h('div.figure', {}, h('span.figure-name', {title: 'the mean of the last tenth of the steps; the change is against the first tenth'}, title + ', last tenth'),
    h('strong', {}, format(found.late), unit && h('small', {}, ' ' + unit)),
    h('span.figure-note' + kind, {}, shown),
    figureCurve(name === 'frac_reward_zero_std' ? found.values.map((v) => (v === null ? null : 1 - v)) : found.values));
}

/** The last evaluation of a set: the first reward that was measured on it, and what a paired test says against the first. */
function evaluationFigure(run, set) {
  const last = run.evaluations.filter((e) => e.name === set).pop();
  if (!last) return null;
  const reward = Object.keys(last.measured).find((name) => name !== 'total') || Object.keys(last.measured)[0];
  if (!reward) {
    const [name, value] = Object.entries(last.metrics)[0] || [];
    return name && h('div.figure', {}, h('span.figure-name', {}, `${name} on ${last.name}`), h('strong', {}, number(value)),
      h('span.figure-note', {}, 'step ' + last.step));
  }
  const [mean, low, high] = last.measured[reward].mean;
  const test = last.tests.find((t) => t.reward === reward && t.roles.includes('first'));
  const kind = !test || test.p > 0.05 ? '' : test.difference > 0 ? '.better' : '.worse';
  return h('div.figure', {}, h('span.figure-name', {}, `${reward} on ${last.name}`),
    h('strong', {}, number(mean), h('small', {}, ` ${number(low)}–${number(high)}`)),
    h('span.figure-note' + kind, {title: test ? pValue(test.p) : ''}, test ? `${signed(test.difference)} since step ${test.against}` : 'step ' + last.step),
    figureCurve(evaluationPoints(run, last.name, reward).map((p) => p.y)));
}

function figureCurve(values) { return sparkline(thinned(values, 80), {width: 160, height: 26, color: 'var(--ink-3)', stretch: true}); }

function speedOf(run) {
  const {metrics} = run.curves, tokens = metrics.num_tokens, times = metrics.step_time;
  if (!times || !times.length) return null;
  const size = Math.min(20, times.length - 1), step = meanOf(times.slice(-Math.max(1, size)));
  if (!tokens || size < 1) return {step, tokens: null};
  const made = tokens[tokens.length - 1] - tokens[tokens.length - 1 - size];
  const steps = run.curves.steps[run.curves.steps.length - 1] - run.curves.steps[run.curves.steps.length - 1 - size];
  return {step, tokens: made / steps / step};
}

function rewardSection(run) {
  const sets = evaluationSets(run);
  const series = () => severalRuns() ? metricSeries('reward') : [
    ...metricSeries('reward').map((c) => ({...c, name: 'training'})),
    ...sets.map((set, i) => ({name: 'evaluation ' + visible(set), color: seriesColor(7 - i), xs: [], ys: [],
      points: evaluationPoints(run, set, 'total')})).filter((c) => c.points.length).map(joinPoints),
  ];
  return new Chart({title: 'Reward', note: 'weighted sum, with 95 % intervals over prompts', height: 264, series,
    format: number}).node;
}

/** Points of evaluations joined by a line. */
function joinPoints(curve) {
  return {...curve, xs: curve.points.map((p) => p.x), ys: curve.points.map((p) => p.y), exact: true};
}

function distributionSection(run) {
  const body = h('div.heatmap-place', {}, h('div.plot-empty', {}, '…'));
  run.completions[0].ready().then((table) => fill(body, table.rows ? heatmap(table) : h('div.plot-empty', {}, 'no completions recorded')),
    () => fill(body, h('div.plot-empty', {}, 'cannot be read')));
  return h('figure.chart', {}, h('figcaption.chart-head', {}, h('span.chart-title', {}, 'How rewards are spread',
    h('small', {}, 'all completions, step by step'))), body);
}

function hintSummary(run) {
  const order = [...run.hints].sort((a, b) => Number(b.holds) - Number(a.holds));
  const list = order.slice(0, 5).map((hint) => h('li.hint-line.' + hint.severity, {},
    h('button.link', {on: {click: () => go('hints')}}, h('b', {}, hint.title), h('span', {}, `step ${hint.first_step}${hint.holds ? ' until now' : '–' + hint.last_step}`))));
  return section('Hints', null, list.length ? h('ul.hint-list', {}, list) : h('p.muted', {}, 'No rule has found anything.'),
    order.length > 5 && h('button.link.more', {on: {click: () => go('hints')}}, `${order.length - 5} more`));
}

function timeSection(run) {
  const parts = ['sample', 'score', 'update'].map((phase, i) => ({
    name: phase, value: (lateAndEarly(run, 'time/' + phase) || {late: 0}).late || 0, color: `var(--phase-${i})`,
  })).filter((p) => p.value);
  const whole = (lateAndEarly(run, 'step_time') || {late: 0}).late, known = parts.reduce((sum, p) => sum + p.value, 0);
  if (!parts.length) return null;
  if (whole > known * 1.005) parts.push({name: 'other', value: whole - known, color: 'var(--line-strong)'});
  const total = Math.max(whole, known);
  return section('Where the time goes', null, stacked(parts), h('ul.legend', {}, parts.map((p) =>
    h('li', {}, h('i.swatch', {style: {'--c': p.color}}), h('span', {}, p.name), h('b', {}, duration(p.value)), h('em', {}, percent(p.value / total))))));
}

/** The last step at a glance: each group's rewards as dots. */
function nowSection(run) {
  const body = h('div.now', {}, h('p.muted', {}, '…'));
  run.completions[0].ready().then((table) => {
    const draw = () => fill(body, lastGroups(table));
    draw();
    listen('data', body, draw);
  }, () => fill(body, h('p.muted', {}, 'cannot be read')));
  return section('Groups of the last step', null, body);
}

function lastGroups(table) {
  const {groups, columns} = table;
  if (!groups.count) return h('p.muted', {}, 'No group is recorded yet.');
  const [low, high] = extent(sampled(columns.total, 5000).filter((v) => !Number.isNaN(v)));
  const last = columns.step[groups.start[groups.count - 1]], found = [];
  for (let g = groups.count - 1; g >= 0 && columns.step[groups.start[g]] === last && found.length < 12; g--) found.push(g);
  return found.reverse().map((g) => h('button.now-row', {on: {click: () => openGroup(0, g)}, title: visible(table.excerptOf(groups.start[g]))},
    dots([...columns.total.subarray(groups.start[g], groups.start[g + 1])], columns.advantage.subarray(groups.start[g], groups.start[g + 1]), low, high, {width: 110}),
    h('span', {}, table.taskOf(groups.start[g]) || excerpt(table.excerptOf(groups.start[g]), 24)), h('b', {}, number(groups.mean[g]))));
}

function perReward(run) {
  const names = rewardNames(run);
  if (!names.length) return null;
  return section('By reward', 'mean over the completions to which it applies; pull: its share of the absolute advantage', h('div.grid.small', {}, names.map((name) => {
    const share = lateAndEarly(run, `rewards/${name}/advantage_share`), weight = run.header.rewards[name];
    const learned = lateAndEarly(run, `constraints/${name}/multiplier`);
    const note = [learned ? `multiplier ${number(learned.late)}` : `weight ${weight}`, share && share.late !== null && `pull ${percent(share.late)}`].filter(Boolean).join(' · ');
    return metricChart(`rewards/${name}/mean`, {title: name, note, height: 120, color: nameColor(name)});
  })));
}

function perTask(run) {
  const names = taskNames(run).filter((name) => !isOneReward(run, name));
  if (!names.length) return null;
  return section('By task', 'mean reward', h('div.grid.small', {}, names.map((name) =>
    metricChart(`tasks/${name}/reward`, {title: name, height: 120, color: nameColor(name)}))));
}

/** Whether a task's curve is that of one reward, as where each task has a reward of its own: it is not drawn twice. */
function isOneReward(run, task) {
  const mine = run.curves.metrics[`tasks/${task}/reward`];
  const near = (a, b) => a === b || (a !== null && b !== null && b !== undefined && Math.abs(a - b) <= 1e-6 * Math.max(1, Math.abs(a)));
  return rewardNames(run).some((name) => { const other = run.curves.metrics[`rewards/${name}/mean`]; return other && mine.every((v, i) => near(v, other[i])); });
}

/** Several runs side by side: where each ended. */
function comparison() {
  const metrics = ['reward', 'completions/mean_length', 'kl', 'entropy', 'frac_reward_zero_std', 'step_time'].filter((m) => metricNames().includes(m));
  return section('Runs', 'mean of the last tenth of the steps', h('div.table-box', {}, h('table', {},
    h('thead', {}, h('tr', {}, h('th', {}, 'run'), h('th', {}, 'state'), h('th.num', {}, 'steps'), metrics.map((m) => h('th.num', {}, metricTitle(m))),
      h('th.num', {}, 'last evaluation'))),
    h('tbody', {}, app.runs.map((run) => h('tr', {}, h('td', {}, h('i.swatch', {style: {'--c': runColor(run)}}), run.name), h('td', {}, stateWord(run)),
      h('td.num', {}, number(lastOf(run.curves.steps) || 0)),
      metrics.map((m) => h('td.num', {}, formatOf(m)((lateAndEarly(run, m) || {late: null}).late))), h('td.num', {}, lastEvaluation(run))))))));
}

function lastEvaluation(run) {
  const last = run.evaluations[run.evaluations.length - 1];
  if (!last) return '–';
  const [reward, found] = Object.entries(last.measured).find(([name]) => name !== 'total') || Object.entries(last.measured)[0] || [];
  return found ? `${visible(reward)} ${number(found.mean[0])} [${number(found.mean[1])}, ${number(found.mean[2])}]` : '–';
}
