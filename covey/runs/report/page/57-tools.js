// Tools: how often each is called, how often it fails, what it costs, and the slowest calls.

function toolsView() {
  const node = h('div.view.tools-view');
  const build = () => {
    const run = currentRun(), used = run.completions.filter(toolsOf);
    fill(node, used.length ? used.map((table) => toolSections(table, run.completions.indexOf(table)))
      : empty('No tools', 'Completions of this run have no turns: it trains without tools and environments.'));
  };
  build();
  listen('rebuild', node, build);
  listen('data', node, build);
  return node;
}

function toolSections(table, source) {
  const {episodes, silent, tools, slowest} = toolsOf(table), where = source ? ' · evaluation ' + visible(table.name) : '';
  return [
    section('Tools' + where, `${count(episodes, 'completion')}, ${percent(silent / episodes)} without a call`, tools.length
      ? h('div.table-box', {}, h('table', {}, h('thead', {}, toolHead()), h('tbody', {}, tools.map((tool) => toolRow(tool, episodes)))))
      : h('p.muted', {}, 'Nothing was called.')),
    slowest.length > 0 && section('Slowest calls' + where, null, h('div.table-box', {}, h('table', {},
      h('thead', {}, h('tr', {}, h('th.num', {}, 'time'), h('th', {}, 'call'), h('th', {}, 'came to'), h('th', {}, 'where'))),
      h('tbody', {}, slowest.map((call) => slowRow(table, source, call)))))),
  ];
}

function toolHead() {
  return h('tr', {}, h('th', {}, 'tool'), ['calls', 'per completion', 'failed', 'time, mean', 'time, longest', 'time, in all'].map((word) => h('th.num', {}, word)),
    h('th', {}, 'how they failed'));
}

function toolRow(tool, episodes) {
  const failed = Object.values(tool.failures).reduce((sum, n) => sum + n, 0);
  const words = Object.entries(tool.failures).map(([status, n]) => `${n} ${status}`).concat(tool.notRun ? [`${tool.notRun} not run`] : []);
  return h('tr', {}, h('td', {}, tool.madeUp ? h('em.muted', {}, tool.name) : h('b', {}, excerpt(tool.name, 80))), h('td.num', {}, tool.calls.toLocaleString('en-US')),
    h('td.num', {}, number(tool.calls / episodes)), h('td.num', {}, tool.calls ? percent(failed / tool.calls) : '–'), h('td.num', {}, tool.calls ? duration(tool.seconds / tool.calls) : '–'),
    h('td.num', {}, duration(tool.longest)), h('td.num', {}, duration(tool.seconds)), h('td.muted', {}, words.join(', ')));
}

function slowRow(table, source, call) {
  return h('tr', {}, h('td.num', {}, duration(call.seconds)), h('td.call-text', {}, `${excerpt(call.name, 60)}(${excerpt(call.arguments, 160)})`),
    h('td', {}, call.status === 'ok' ? 'a result' : h('em', {}, call.status)),
    h('td', {}, h('button.link', {on: {click: () => openCall(table, source, call)}}, `step ${call.step}, group ${call.group + 1}, #${call.index + 1}`)));
}

async function openCall(table, source, call) {
  await table.ready().catch(() => null);
  const {groups, columns} = table;
  for (let g = 0; groups && g < groups.count; g++) {
    const at = groups.start[g];
    if (columns.step[at] === call.step && columns.group[at] === call.group) { openGroup(source, g); return; }
  }
}
