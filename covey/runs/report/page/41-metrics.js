// Which metrics there are, what they are called, and where they stand.

const METRIC_TITLES = {
  reward: 'reward', reward_std: 'spread within groups', frac_reward_zero_std: 'groups without spread', loss: 'loss',
  grad_norm: 'gradient norm', learning_rate: 'learning rate', kl: 'KL to the reference', entropy: 'entropy',
  num_tokens: 'tokens so far', step_time: 'time per step', 'time/sample': 'sampling', 'time/score': 'scoring',
  'time/update': 'update', 'completions/mean_length': 'length, mean', 'completions/min_length': 'length, shortest',
  'completions/max_length': 'length, longest', 'completions/clipped_ratio': 'cut off at the limit',
  'completions/mean_terminated_length': 'length of ended ones, mean',
  'completions/min_terminated_length': 'length of ended ones, shortest',
  'completions/max_terminated_length': 'length of ended ones, longest', 'clip_ratio/low_mean': 'clipped low, mean',
  'clip_ratio/low_min': 'clipped low, least', 'clip_ratio/high_mean': 'clipped high, mean',
  'clip_ratio/high_max': 'clipped high, most', 'clip_ratio/region_mean': 'clipped tokens',
  'sampling/logp_gap/mean': 'sampler against trainer, mean gap', 'sampling/logp_gap/max': 'sampler against trainer, largest gap',
  'update/dropped_share': 'rows skipped, advantage 0', 'sampling/masked_share': 'masked for the gap', 'advantages/mean_abs': 'size of the advantages',
  'ratio/mean': 'ratio, mean', 'update/nonfinite_steps': 'steps that were not finite', 'prompts/cut_share': 'prompts cut', 'memory/peak_mb': 'peak memory', 'reward/unscored': 'completions without a score',
  'tools/call_frequency': 'calls per completion', 'tools/failure_frequency': 'calls that fail', 'tools/no_call_share': 'completions without a call',
  'episodes/turns/mean': 'turns, mean', 'episodes/turns/max': 'turns, most', 'completions/injected_share': 'tokens that answer the policy',
  'time/tools': 'tools', 'sampling/capped_share': 'weights at the cap', 'sampling/ess': 'effective sample size, share', 'async/stale_share': 'left out, too old', 'async/sample_seconds': 'sampling, beside the update', 'async/score_seconds': 'scoring, beside the update',
  'engine/wait_seconds': 'waiting for servers', 'engine/sync_seconds': 'sending weights', 'engine/retries': 'requests sent again', 'engine/lost': 'servers lost',
  'replay/share': 'groups trained on again, share', 'replay/age': 'their age in rollouts', 'replay/ess': 'their effective sample size, share', 'replay/dropped': 'dropped as too old', 'replay/weight': 'weight of their advantages',
  'engine/probe_gap': 'gap of the probe', 'async/lag': 'rollouts between sampling and training', 'async/wait_sampler': 'trainer waits for samples', 'async/wait_trainer': 'sampler waits for the trainer',
};

const KIND_TITLES = {advantage_share: 'share of the advantage', std: 'spread', count: 'completions', failed: 'failed', zero_std_share: 'groups without spread'};

/** Panels of the curves, in the order of the algorithm; each metric goes to the first that takes it. */
const PANELS = [
  ['Sample', 'what the policy writes', /^(completions\/|sampling\/|replay\/|tools\/|episodes\/|prompts\/|vision\/)/],
  ['Engine', 'who samples, and who waits for whom', /^(engine\/|async\/)/],
  ['Score', 'what the rewards say', /^(reward|frac_reward|rewards\/|tasks\/|advantages\/|allocation\/|curriculum\/|constraints\/|dynamic_sampling\/)/],
  ['Update', 'what is learned from it', /^(loss|grad_norm|learning_rate|kl|entropy|clip_ratio\/|update\/|ratio\/|covariance\/|dppo\/|vespo\/|policy_loss)/],
  ['Machine', 'what it takes', /^(time\/|step_time|memory\/|num_tokens)/],
  ['Other', 'logged by rewards and callbacks', /./],
];

/** Metrics that belong into one chart, while one run is shown. */
const TOGETHER = [
  ['length', [['completions/mean_length', 'mean'], ['completions/min_length', 'shortest'], ['completions/max_length', 'longest']]],
  ['length of those that ended', [['completions/mean_terminated_length', 'mean'], ['completions/min_terminated_length', 'shortest'], ['completions/max_terminated_length', 'longest']]],
  ['turns', [['episodes/turns/mean', 'mean'], ['episodes/turns/max', 'most']]],
  ['calls that fail', [['tools/failure_frequency', 'all'], ['tools/malformed_share', 'malformed'], ['tools/unknown_share', 'no such tool'], ['tools/timeout_share', 'out of time']]],
  ['why episodes end', FINISHES.map((finish) => ['episodes/ended/' + finish, finish.replace('_', ' ')])],
  ['clipped tokens', [['clip_ratio/region_mean', 'all'], ['clip_ratio/low_mean', 'low'], ['clip_ratio/high_mean', 'high']]],
  ['sending weights', [['engine/sync_seconds', 'all'], ['engine/sync/gather', 'gather'], ['engine/sync/write', 'write'], ['engine/sync/load', 'load']]],
  ['waiting', [['async/wait_sampler', 'trainer for samples'], ['async/wait_trainer', 'sampler for the trainer']]],
  ['time', [['time/sample', 'sample'], ['time/score', 'score'], ['time/update', 'update']]],
];

function metricTitle(name) {
  if (METRIC_TITLES[name]) return METRIC_TITLES[name];
  const reward = /^rewards\/(.+)\/(\w+)$/.exec(name);
  if (reward) return `${reward[1]} · ${{mean: 'mean', std: 'spread', count: 'scored', advantage_share: 'share of the advantage', failed: 'failed'}[reward[2]] || KIND_TITLES[reward[2]] || reward[2].replaceAll('_', ' ')}`;
  const task = /^tasks\/(.+)\/(\w+)$/.exec(name);
  const server = /^engine\/tokens\/(\d+)$/.exec(name);
  return task ? `task ${task[1]} · ${task[2]}` : server ? `tokens of server ${server[1]}` : name;
}

/** Names of all metrics of the runs that are shown, in the order in which they appear. */
function metricNames() {
  return [...new Set(shownRuns().flatMap((run) => Object.keys(run.curves.metrics)))];
}

/** One curve per run for a metric, with its interval where there is one. */
function metricSeries(name, color) {
  return shownRuns().filter((run) => run.curves.metrics[name]).map((run) => ({
    name: visible(run.name), color: severalRuns() ? runColor(run) : color || 'var(--c0)', xs: xsOf(run),
    ys: run.curves.metrics[name], errors: run.curves.errors[name],
  }));
}

function metricChart(name, options = {}) {
  return new Chart({
    title: metricTitle(name), format: formatOf(name), series: () => metricSeries(name, options.color), ...options,
  }).node;
}

const kindTitle = (what) => KIND_TITLES[what] || what.replaceAll('_', ' ');

/** Metrics of which there is one per reward, task or server: title of their chart, name of the curve, and whose colour it has. */
const KINDS = [
  [/^rewards\/(.+)\/(\w+)$/, (reward, what) => what !== 'mean' && [kindTitle(what) + ', by reward', reward, reward]],
  [/^tasks\/(.+)\/(\w+)$/, (task, what) => what !== 'reward' && [kindTitle(what) + ', by task', task, task]],
  [/^time\/rewards\/(.+)$/, (reward) => ['seconds by reward', reward, reward]],
  [/^engine\/tokens\/(\d+)$/, (server) => ['tokens a round, by server', 'server ' + server]],
];

/** The same number of every reward, of every task or of every server, as one chart each; means stay apart, with their intervals. */
function byKind(names) {
  const kinds = new Map();
  for (const name of names) {
    for (const [pattern, place] of KINDS) {
      const found = pattern.exec(name), [title, word, owner] = (found && place(...found.slice(1))) || [];
      if (!title) continue;
      if (!kinds.has(title)) kinds.set(title, []);
      kinds.get(title).push([name, visible(word), owner]);
    }
  }
  return [...kinds];
}

/** Several metrics of one run in one chart. */
function togetherChart(title, members) {
  const series = () => members.filter(([name]) => currentRun().curves.metrics[name]).map(([name, word, owner], i) => ({
    name: word, color: title === 'time' ? `var(--phase-${i})` : owner ? nameColor(owner) : seriesColor(i), xs: xsOf(currentRun()),
    ys: currentRun().curves.metrics[name], errors: currentRun().curves.errors[name],
  }));
  return new Chart({title, format: formatOf(members[0][0]), series}).node;
}

/** A metric's last values: mean of the last tenth of the points, and of the first. */
function lateAndEarly(run, name) {
  const values = run.curves.metrics[name];
  if (!values || !values.length) return null;
  const size = Math.max(1, Math.min(20, Math.round(values.length / 10)));
  return {late: meanOf(values.slice(-size)), early: meanOf(values.slice(0, size)), values};
}

function rewardNames(run) {
  return Object.keys(run.header.rewards || {});
}

function taskNames(run) {
  return Object.keys(run.curves.metrics).map((n) => /^tasks\/(.+)\/reward$/.exec(n)).filter(Boolean).map((m) => m[1]);
}

/** Points of the evaluations of a run by a measured reward, with their intervals. */
function evaluationPoints(run, set, reward) {
  return run.evaluations.filter((e) => e.name === set && e.measured[reward]).map((e) => {
    const [y, low, high] = e.measured[reward].mean;
    return {x: xOfEvaluation(run, e.step), y, low, high, step: e.step};
  });
}

/** Where an evaluation stands: that of step 0 before the first step. */
function xOfEvaluation(run, step) {
  return step > 0 ? xOfStep(run, step) : app.x === 'step' || !run.curves.steps.length ? 0 : xsOf(run)[0];
}

function evaluationSets(run) { return [...new Set(run.evaluations.map((e) => e.name))]; }
