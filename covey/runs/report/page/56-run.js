// How the run was set up: settings, environment, git, dataset, plan, and what happened.

function runView() {
  const node = h('div.view.run-view'), body = h('div');
  const state = {text: '', only: severalRuns()};
  const build = () => fill(body, settingsSection(state), app.runs.map((run) => [severalRuns() && h('h2.run-title', {}, h('i.swatch', {style: {'--c': runColor(run)}}), run.name), aboutRun(run)]));
  const only = h('input', {type: 'checkbox', checked: state.only, on: {change: (e) => { state.only = e.target.checked; build(); }}});
  fill(node, h('div.toolbar', {}, searchField('find a setting', (value) => { state.text = value.toLowerCase(); build(); }),
    severalRuns() && h('label.check', {}, only, 'only what differs')), body);
  build();
  listen('rebuild', node, build);
  return node;
}

function settingsSection(state) {
  const changed = new Set(app.runs.flatMap((run) => run.header.changed || []));
  const names = [...new Set(app.runs.flatMap((run) => Object.keys(run.header.settings || {})))].sort((a, b) => changed.has(b) - changed.has(a) || (a < b ? -1 : 1));
  const value = (run, name) => JSON.stringify((run.header.settings || {})[name]) ?? '';
  const differs = (name) => app.runs.some((run) => value(run, name) !== value(app.runs[0], name));
  const shown = names.filter((n) => n.toLowerCase().includes(state.text) && (!state.only || differs(n)));
  if (!severalRuns()) {
    const settings = app.runs[0].header.settings || {};
    const list = (some) => h('dl.settings-list', {}, some.map((name) => h('div', {}, h('dt', {}, name), h('dd', {}, cut(plainText(settings[name] ?? null), 300)))));
    const [mine, others] = [shown.filter((n) => changed.has(n)), shown.filter((n) => !changed.has(n))];
    return section('Settings', `${shown.length} of ${names.length}`, !shown.length && h('p.muted', {}, 'No setting matches.'),
      mine.length > 0 && [h('h3', {}, 'not at their default'), list(mine)],
      others.length > 0 && (mine.length ? h('details', {open: state.text !== ''}, h('summary', {}, `${count(others.length, 'setting')} at its default`), list(others)) : list(others)));
  }
  const rows = shown.map((name) => h('tr' + (severalRuns() && differs(name) ? '.differs' : ''), {}, h('th', {}, name), app.runs.map((run) => h('td', {}, cut(value(run, name), 300)))));
  return section('Settings', `${shown.length} of ${names.length}`, shown.length ? h('div.table-box', {}, h('table.settings', {},
    severalRuns() && h('thead', {}, h('tr', {}, h('th'), app.runs.map((run) => h('th', {}, h('i.swatch', {style: {'--c': runColor(run)}}), run.name)))),
    h('tbody', {}, rows))) : h('p.muted', {}, state.only ? 'The runs have the same settings.' : 'No setting matches.'));
}

function aboutRun(run) {
  const {header: head} = run, environment = head.environment || {}, git = head.git;
  return h('div.about', {},
    section('Model and data', null, facts({...prefixed(head.model), ...prefixed(head.dataset, 'dataset ')})),
    section('Engine', 'what samples', facts(head.engine || {})),
    section('Plan', null, facts(Object.fromEntries(head.plan || []))),
    section('Rewards', 'name and weight', facts(head.rewards || {})),
    section('Environment', null, facts({...flat(environment, ['libraries', 'variables', 'command']), command: (environment.command || []).join(' ')})),
    section('Libraries', null, facts(environment.libraries || {})),
    section('Git', null, git ? [facts({commit: git.commit, branch: git.branch, 'working tree': git.clean ? 'clean' : 'changed'}),
      git.diff && h('details', {}, h('summary', {}, 'difference to the commit'), diffText(git.diff))] : h('p.muted', {}, 'not in a repository')),
    section('What happened', null, h('ol.events', {}, run.events.slice(-300).reverse().map((event) =>
      h('li' + (event.void ? '.void' : ''), {title: event.void ? 'a later resume went back before this step' : ''},
        h('time', {}, moment(event.time)), h('span.event-step', {}, event.step === null ? '' : 'step ' + event.step), h('span.event-kind', {}, event.kind), h('span.event-message', {}, event.message))))));
}

function flat(value, without) { return Object.fromEntries(Object.entries(value).filter(([key]) => !without.includes(key))); }
function prefixed(value, prefix = '') { return Object.fromEntries(Object.entries(value || {}).map(([key, v]) => [prefix + key, v])); }

function facts(values) {
  const kept = Object.entries(values).filter(([, v]) => v !== null && v !== undefined && v !== '' && !(Array.isArray(v) && !v.length));
  if (!kept.length) return h('p.muted', {}, 'not recorded');
  return h('dl.facts-list', {}, kept.map(([name, value]) => [h('dt', {}, name), h('dd', {}, cut(plainText(value), 1000))]));
}

function diffText(diff) {
  return h('pre.git-diff', {}, diff.split('\n').slice(0, 3000).map((line) =>
    h('span' + (line.startsWith('+') ? '.new' : line.startsWith('-') ? '.gone' : ''), {text: line + '\n'})));
}
