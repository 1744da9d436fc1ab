// What went wrong: failures of rewards with their tracebacks, and the hints.

function failuresView() {
  const node = h('div.view.failures');
  const build = () => {
    const run = currentRun();
    fill(node, run.failures.length
      ? run.failures.map((failure) => failureCard(run, failure))
      : empty('No reward has failed', 'Samples on which a reward fails are left out, counted, and shown here with the traceback.'));
  };
  build();
  listen('rebuild', node, build);
  let known = currentRun().failures.length;
  listen('data', node, () => { if (currentRun().failures.length !== known) { known = currentRun().failures.length; build(); } });
  return node;
}

function failureCard(run, failure) {
  const steps = failure.steps, first = steps[0][0], last = steps[steps.length - 1][0];
  const when = first === last ? `at step ${first}` : `from step ${first} to ${last}`;
  return h('article.block.failure', {},
    h('header', {}, h('span.badge', {}, failure.reward), h('h3', {text: failure.title || 'no message'}),
      h('span.facts', {}, `${count(failure.count, 'sample')} ${when}`),
      failure.group !== null && h('button.link', {on: {click: () => openFailure(run, failure)}}, 'the first sample')),
    failureBars(run, failure), h('div.bar-ends', {'aria-hidden': 'true'}, h('span', {}, 'step 1'), h('span', {}, 'step ' + (lastOf(run.curves.steps) || 1))),
    h('pre', {text: failure.error || '(no traceback was recorded)'}));
}

/** How many failed, over the whole run. */
function failureBars(run, failure) {
  const {steps} = run.curves, last = steps[steps.length - 1] || 1, bins = 80, counts = new Array(bins).fill(0);
  for (const [step, n] of failure.steps) counts[Math.min(bins - 1, Math.max(0, Math.floor(((step - 1) / last) * bins)))] += n;
  const top = Math.max(...counts);
  return s('svg.bars', {viewBox: `0 0 ${bins * 6} 24`, preserveAspectRatio: 'none', role: 'img', 'aria-label': 'failures over the steps'},
    s('line', {x1: 0, x2: bins * 6, y1: 23.5, y2: 23.5}),
    counts.map((n, i) => n && s('rect', {x: i * 6 + 1, width: 4, y: 23 - (n / top) * 22, height: (n / top) * 22})).filter(Boolean));
}

async function openFailure(run, failure) {
  const table = await run.completions[0].ready().catch(() => null);
  if (!table) return;
  const {groups, columns} = table, step = failure.steps[0][0];
  for (let g = 0; g < groups.count; g++) {
    const at = groups.start[g];
    if (columns.step[at] === step && columns.group[at] === failure.group) { openGroup(0, g); return; }
  }
}

function hintsView() {
  const node = h('div.view.hints');
  const build = () => {
    const runs = severalRuns() ? shownRuns() : [currentRun()];
    fill(node, runs.map((run) => [severalRuns() && h('h2.run-title', {}, h('i.swatch', {style: {'--c': runColor(run)}}), run.name),
      run.hints.length ? run.hints.map((hint) => hintCard(run, hint))
        : empty('Nothing found', 'Rules look at every step for what commonly goes wrong: groups without spread, truncation, rewards that dominate or fail, KL and entropy that run away, and more.')]));
  };
  build();
  listen('rebuild', node, build);
  const mark = () => JSON.stringify(app.runs.map((run) => run.hints.map((hint) => [hint.rule, hint.subject, hint.holds, hint.severity])));
  let known = mark();
  listen('data', node, () => { if (mark() !== known) { known = mark(); build(); } });
  return node;
}

function hintCard(run, hint) {
  const names = hint.metrics.filter((name) => run.curves.metrics[name]).slice(0, 3);
  const span = [xOfStep(run, hint.first_step), xOfStep(run, hint.last_step)];
  return h('article.block.hint.' + hint.severity, {},
    h('div.hint-words', {},
      h('header', {}, h('span.badge', {}, hint.severity), h('h3', {}, hint.title)),
      h('p.when', {}, hint.holds ? `from step ${hint.first_step} until now` : `from step ${hint.first_step} to ${hint.last_step}; not any more`),
      h('p', {}, hint.evidence),
      h('ul.advice', {}, hint.advice.map((advice) => h('li', {}, advice)))),
    names.length > 0 && h('div.hint-curves', {}, names.map((name) => new Chart({
      title: metricTitle(name), format: formatOf(name), height: 96, spans: () => [span],
      series: () => [{name: visible(run.name), color: 'var(--c0)', xs: xsOf(run), ys: run.curves.metrics[name], errors: run.curves.errors[name]}],
    }).node)));
}
