// Evaluations: curves with intervals, pass@k, and paired tests between checkpoints.

function evaluationsView() {
  const node = h('div.view.evaluations');
  const build = () => fill(node, evaluationContent());
  build();
  listen('rebuild', node, build);
  let known = app.runs.reduce((n, run) => n + run.evaluations.length, 0);
  listen('data', node, () => {
    const now = app.runs.reduce((n, run) => n + run.evaluations.length, 0);
    if (now !== known) { known = now; build(); }
  });
  return node;
}

function evaluationContent() {
  const runs = shownRuns().filter((run) => run.evaluations.length);
  if (!runs.length) return empty('No evaluation yet', 'Give eval_dataset and eval_steps. A metric that is not the reward tells progress from a reward that is gamed.');
  const sets = [...new Set(runs.flatMap(evaluationSets))];
  return sets.map((set) => [
    section('On ' + set, 'intervals of 95 %, over prompts', h('div.grid', {}, measuredCharts(runs, set), loggedCharts(runs, set))),
    runs.map((run) => testTable(run, set)),
  ]);
}

function measuredCharts(runs, set) {
  const rewards = [...new Set(runs.flatMap((run) => run.evaluations.filter((e) => e.name === set).flatMap((e) => Object.keys(e.measured))))];
  return rewards.map((reward) => {
    const series = () => shownRuns().map((run) => joinPoints({name: visible(run.name), color: severalRuns() ? runColor(run) : nameColor(reward),
      points: evaluationPoints(run, set, reward)})).filter((c) => c.points.length);
    const first = runs[0].evaluations.find((e) => e.name === set && e.measured[reward]);
    const note = first ? `${count(first.measured[reward].prompts, 'prompt')}, ${first.measured[reward].method}` : '';
    return new Chart({title: reward === 'total' ? 'reward' : reward, note, height: 170, series}).node;
  });
}

// Metrics of an evaluation that the rows say better, or that say nothing about the policy.
const HOUSEKEEPING = /^(reward|rewards\/|tasks\/|time\/|frac_reward|runtime|samples_per_second|steps_per_second|completions\/(?!mean_length|clipped_ratio))|\/(low|high)$/;

function loggedCharts(runs, set) {
  const measured = new Set(runs.flatMap((run) => run.evaluations.flatMap((e) => Object.keys(e.measured))));
  const names = [...new Set(runs.flatMap((run) => run.evaluations.filter((e) => e.name === set).flatMap((e) => Object.keys(e.metrics))))];
  return names.filter((n) => !HOUSEKEEPING.test(n) && !measured.has(n)).map((name) => {
    const series = () => shownRuns().map((run) => joinPoints({name: visible(run.name), color: severalRuns() ? runColor(run) : 'var(--c7)',
      points: run.evaluations.filter((e) => e.name === set && e.metrics[name] !== undefined && e.metrics[name] !== null)
        .map((e) => ({x: xOfEvaluation(run, e.step), y: e.metrics[name]}))})).filter((c) => c.points.length);
    return new Chart({title: metricTitle(name), note: 'as logged', height: 170, series, format: formatOf(name)}).node;
  });
}

/** One line per evaluation: what was measured, and how it compares with the first and the one before. */
function testTable(run, set) {
  const lines = run.evaluations.filter((e) => e.name === set && Object.keys(e.measured).length);
  if (!lines.length) return null;
  const rewards = [...new Set(lines.flatMap((e) => Object.keys(e.measured)))].sort((a, b) => (a === 'total') - (b === 'total'));
  const holder = h('div'), show = (reward) => fill(holder, rewardTable(lines, reward));
  show(rewards[0]);
  return section(severalRuns() ? run.name : 'Checkpoint against checkpoint', 'paired tests on the same prompts',
    rewards.length > 1 && choice('reward', rewards.map((r) => [r, r === 'total' ? 'reward' : visible(r)]), rewards[0], show), holder);
}

function rewardTable(lines, reward) {
  const kept = lines.filter((e) => e.measured[reward]);
  const powers = [...new Set(kept.flatMap((e) => Object.keys(e.measured[reward].pass || {})))].map(Number).sort((a, b) => a - b).filter((k) => k > 1);
  return h('div.table-box', {}, h('table', {},
    h('thead', {}, h('tr', {}, h('th.num', {}, 'step'), h('th.num', {}, 'mean'), h('th.num', {}, 'interval'), powers.map((k) => h('th.num', {}, 'pass@' + k)),
      h('th', {}, 'against the first'), h('th', {}, 'against the one before'), h('th', {}, 'against the best before'))),
    h('tbody', {}, kept.map((e) => evaluationRow(e, reward, powers)))));
}

function evaluationRow(e, reward, powers) {
  const found = e.measured[reward], [mean, low, high] = found.mean;
  const test = (role) => e.tests.find((t) => t.reward === reward && t.roles.includes(role));
  return h('tr', {}, h('td.num', {}, String(e.step)), h('td.num', {}, h('b', {}, number(mean))), h('td.num.muted', {}, `${number(low)} – ${number(high)}`),
    powers.map((k) => h('td.num', {}, found.pass && found.pass[k] ? number(found.pass[k]) : '–')),
    ['first', 'previous', 'best'].map((role) => h('td', {}, testWords(test(role)))));
}

function testWords(test) {
  if (!test) return '–';
  const sure = test.p < 0.05, kind = !sure ? '' : test.difference > 0 ? '.better' : '.worse';
  const title = `${test.pairs} prompts, ${test.better} better, ${test.worse} worse; ${test.method}`;
  return h('span.test' + kind, {title}, h('b', {}, signed(test.difference)), ` ${pValue(test.p)} `, h('small', {}, `${test.better}↑ ${test.worse}↓`));
}
