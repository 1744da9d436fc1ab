// Groups and completions: find, sort, read.

const GROUP_ORDERS = [
  ['signal', 'most signal'], ['-signal', 'least signal'], ['-step', 'latest'], ['step', 'earliest'], ['-mean', 'highest mean'],
  ['mean', 'lowest mean'], ['-spread', 'largest spread'], ['-tokens', 'longest'],
];
const COMPLETION_ORDERS = [
  ['-step', 'latest'], ['step', 'earliest'], ['-total', 'highest reward'], ['total', 'lowest reward'],
  ['-advantage', 'highest advantage'], ['advantage', 'lowest advantage'], ['-tokens', 'longest'], ['tokens', 'shortest'],
];

const CALL_FILTERS = [['', 'any calls'], ['some', 'with calls'], ['none', 'without calls'], ['failed', 'a call failed']];

const groupsState = {source: 0, kind: 'groups', order: 'signal', task: '', finish: '', reward: '', text: '', calls: '', open: null, address: null, from: '', to: ''};

/** Show one group, from wherever one is. */
function openGroup(source, g) {
  Object.assign(groupsState, {source, kind: 'groups', task: '', finish: '', reward: '', text: '', calls: '', from: '', to: '', open: g});
  go('groups');
}

function groupsView() {
  const state = groupsState, node = h('div.view.split-view'), tools = h('div.toolbar'), status = h('p.list-status', {'aria-live': 'polite'});
  const detail = h('div.detail');
  const view = {state, node, status, detail, found: [], searching: 0};
  view.list = new VirtualList({rowHeight: 46, label: 'groups', render: (i) => groupRow(view, i), select: (i) => showDetail(view, i)});
  fill(node, tools, h('div.split', {}, h('div.split-list', {}, status, columnNames(view), view.list.node), detail));
  const start = () => startGroups(view, tools);
  start();
  listen('rebuild', node, start);
  listen('data', node, () => view.table && search(view, true));
  return node;
}

/** What stands in the rows of the list. */
function columnNames(view) {
  view.names = h('div.column-names', {'aria-hidden': 'true'});
  return view.names;
}

function nameColumns(view) {
  const names = view.state.kind === 'groups'
    ? [['row-step', 'step'], ['names-dots', 'rewards'], ['row-mean', 'mean'], ['row-text', 'prompt'], ['names-meter', 'signal']]
    : [['row-step', 'step'], ['row-mean', 'reward'], ['names-bar', 'advantage'], ['row-tokens', 'tokens'], ['row-text', 'completion']];
  fill(view.names, names.map(([kind, word]) => h('span.' + kind, {}, word)));
}

async function startGroups(view, tools) {
  const run = currentRun();
  view.state.source = Math.min(view.state.source, run.completions.length - 1);
  view.table = run.completions[view.state.source];
  fill(view.status, 'reading …');
  try { await view.table.ready(); } catch { fill(view.status, 'The completions of this run cannot be read.'); return; }
  if (view.table !== currentRun().completions[view.state.source]) return;
  view.range = extent(sampled(view.table.columns.total || [], 20000).filter((v) => !Number.isNaN(v)));
  fill(tools, groupTools(view, tools));
  nameColumns(view);
  await search(view);
  if (view.state.address) { view.state.open = groupOf(view.table, ...view.state.address); view.state.address = null; }
  if (view.state.open !== null) { openFound(view, view.state.open); view.state.open = null; }
  else if (view.found.length) view.list.choose(0);
  else fill(view.detail, empty('No completions', 'This run has recorded no group yet.'));
}

function groupTools(view, tools) {
  const {state, table} = view, change = (key) => (value) => { state[key] = value; search(view); };
  const restart = () => startGroups(view, tools);
  const tasks = table.tasks.length > 1 && select('task', [['', 'all tasks'], ...table.tasks.map((t) => [t, visible(t)])], state.task, change('task'));
  const kinds = [['groups', 'groups'], ['completions', 'completions']];
  return [
    sourceSelect(state.source, (i) => { state.source = i; restart(); }),
    choice('what the list shows', kinds, state.kind, (kind) => {
      state.kind = kind;
      state.order = kind === 'groups' ? 'signal' : '-step';
      restart();
    }),
    select('order', state.kind === 'groups' ? GROUP_ORDERS : COMPLETION_ORDERS, state.order, change('order')),
    tasks,
    select('rewards', rewardFilters(table), state.reward, change('reward')),
    select('end', [['', 'any end'], ['length', 'cut off'], ['stop', 'ended']], state.finish, change('finish')),
    toolsOf(table) && select('calls', CALL_FILTERS, state.calls, change('calls')),
    h('span.range', {}, stepField('from step', state.from, change('from')), '–', stepField('to step', state.to, change('to'))),
    searchField('find in texts', change('text')),
  ];
}

function stepField(label, value, change) {
  const node = h('input.step', {type: 'number', min: 0, placeholder: label, 'aria-label': label, value,
    on: {input: afterPause(() => change(node.value), 250)}});
  return node;
}

function rewardFilters(table) {
  const kinds = [['failed', 'failed'], ['not_applicable', 'does not apply'], ['gated', 'gated'], ['top', 'at its top'], ['zero', 'at 0']];
  return [['', 'any reward'], ...table.rewards.flatMap((r) => kinds.map(([key, word]) => [`${key}:${r}`, `${visible(r)} ${word}`]))];
}

/** Find what fits the filters, in order, and show it. A live update keeps the place. */
async function search(view, keep = false) {
  const ticket = ++view.searching, {state, table} = view;
  const fits = rowFilter(state, table);
  let rows = null;
  if (state.text.trim()) {
    rows = await rowsWithText(view, state.text.trim().toLowerCase(), ticket);
    if (!rows) return;
  }
  const passes = (row) => fits(row) && (!rows || rows.has(row));
  view.found = state.kind === 'groups' ? foundGroups(table, passes, state.order) : foundRows(table, passes, state.order);
  const whole = state.kind === 'groups' ? table.groups.count : table.rows;
  const word = state.kind === 'groups' ? 'group' : 'completion';
  fill(view.status, view.found.length === whole ? count(whole, word) : `${view.found.length.toLocaleString('en-US')} of ${count(whole, word)}`,
    leftOutNote(table));
  view.list.rowHeight = state.kind === 'groups' ? 46 : 32;
  view.list.show(view.found.length, {keep});
}

function leftOutNote(table) {
  const n = table.source.leftOut;
  return n ? h('span.warn', {title: 'covey report --max-size MB'}, `texts of ${count(n, 'completion')} left out for the size of this file`) : null;
}

function rowFilter(state, table) {
  const {columns} = table, checks = [];
  const task = table.tasks.indexOf(state.task), from = parseInt(state.from, 10), to = parseInt(state.to, 10);
  if (state.task) checks.push((i) => columns.task[i] === task);
  if (state.finish) checks.push((i) => isCut(columns, i) === (state.finish === 'length'));
  if (state.calls === 'none') checks.push((i) => columns.calls[i] === 0);
  if (state.calls === 'some') checks.push((i) => columns.calls[i] > 0);
  if (state.calls === 'failed') checks.push((i) => columns.call_failures[i] > 0);
  if (!Number.isNaN(from)) checks.push((i) => columns.step[i] >= from);
  if (!Number.isNaN(to)) checks.push((i) => columns.step[i] <= to);
  if (state.reward) checks.push(rewardCheck(table, ...splitOnce(state.reward)));
  return (i) => checks.every((check) => check(i));
}

function splitOnce(text) { const at = text.indexOf(':'); return [text.slice(0, at), text.slice(at + 1)]; }

function rewardCheck(table, kind, reward) {
  const scores = table.columns['score/' + reward], statuses = table.columns['status/' + reward];
  if (!scores) return () => true;
  if (kind === 'zero') return (i) => scores[i] === 0;
  if (kind === 'top') { const top = scores.reduce((a, b) => (b > a ? b : a), -Infinity); return (i) => scores[i] === top; }
  const status = STATUSES.indexOf(kind);
  return (i) => statuses[i] === status;
}

function foundGroups(table, passes, order) {
  const {groups, columns} = table, found = [];
  for (let g = 0; g < groups.count; g++) {
    for (let i = groups.start[g]; i < groups.start[g + 1]; i++) if (passes(i)) { found.push(g); break; }
  }
  const key = order.replace('-', ''), least = order === '-signal';
  const values = key === 'step' ? (g) => columns.step[groups.start[g]] : (g) => (Number.isNaN(groups[key][g]) ? -Infinity : groups[key][g]);
  const falling = least ? false : order === 'signal' || order.startsWith('-');
  return found.sort((a, b) => (falling ? values(b) - values(a) : values(a) - values(b)) || a - b);
}

function foundRows(table, passes, order) {
  const found = [];
  for (let i = 0; i < table.rows; i++) if (passes(i)) found.push(i);
  const values = table.columns[order.replace('-', '')], falling = order.startsWith('-');
  const known = (v) => (Number.isNaN(v) ? (falling ? -Infinity : Infinity) : v);
  return found.sort((a, b) => (falling ? known(values[b]) - known(values[a]) : known(values[a]) - known(values[b])) || a - b);
}

/** Go through the texts chunk by chunk, leaving the page alive; null if another search has begun meanwhile. */
async function rowsWithText(view, wanted, ticket) {
  const {table} = view, size = table.source.chunk, rows = new Set(), chunks = Math.ceil(table.rows / size);
  for (let c = 0; c < chunks; c++) {
    const texts = await table.source.texts(c).catch(() => []);
    if (view.searching !== ticket) return null;
    texts.forEach((entry, i) => { if (entry.text !== undefined && entry.text.toLowerCase().includes(wanted)) rows.add(c * size + i); });
    if (c % 8 === 7) {
      fill(view.status, `searching … ${percent((c + 1) / chunks)}`);
      await new Promise((go) => setTimeout(go));
    }
  }
  return rows;
}

function groupRow(view, position) {
  const {table} = view;
  return view.state.kind === 'groups' ? groupRowParts(view, table, view.found[position]) : completionRowParts(table, view.found[position]);
}

function groupRowParts(view, table, g) {
  const {groups, columns} = table, from = groups.start[g], to = groups.start[g + 1];
  return [
    h('span.row-step', {}, h('b', {}, String(columns.step[from])), h('small', {}, table.taskOf(from) || '')),
    dots([...columns.total.subarray(from, to)], columns.advantage.subarray(from, to), view.range[0], view.range[1]),
    h('span.row-mean', {}, number(groups.mean[g])),
    h('span.row-text', {}, table.excerptOf(from) || h('span.muted', {}, 'row ' + columns.row[from])),
    meter(groups.signal[g] / 1.2),
  ];
}

async function completionRowParts(table, row) {
  const {columns} = table, entry = columns.text[row] === 1 ? await table.text(row) : {};
  return [
    h('span.row-step', {}, h('b', {}, String(columns.step[row]))),
    h('span.row-mean', {}, number(columns.total[row])),
    advantageBar(columns.advantage[row]),
    h('span.row-tokens', {}, String(columns.tokens[row]), isCut(columns, row) && h('em', {title: 'cut off'}, '✂')),
    h('span.row-text', {}, entry.text === undefined ? h('span.muted', {}, 'no text') : excerpt(entry.text, 200)),
  ];
}

/** The group that an address of the page names by step and number; null where there is none. */
function groupOf(table, step, number) {
  const {groups, columns} = table;
  for (let g = 0; g < groups.count; g++) {
    const at = groups.start[g];
    if (columns.step[at] === step && columns.group[at] === number - 1) return g;
  }
  return null;
}

function openFound(view, g) {
  const position = view.found.indexOf(g);
  if (position >= 0) view.list.choose(position); else showGroup(view, g);
}

function showDetail(view, position) {
  const found = view.found[position];
  if (view.state.kind === 'groups') showGroup(view, found);
  else showGroup(view, groupAt(view.table.groups, found), found);
}

function groupAt(groups, row) {
  let low = 0, high = groups.count - 1;
  while (low < high) { const middle = (low + high + 1) >> 1; if (groups.start[middle] <= row) low = middle; else high = middle - 1; }
  return low;
}

/** A group: its prompt, then its completions from the highest advantage to the lowest; one of them may come first. */
function showGroup(view, g, first) {
  const {table, detail} = view, {groups, columns} = table, from = groups.start[g];
  const rows = Array.from({length: groups.start[g + 1] - from}, (_, i) => from + i)
    .sort((a, b) => (b === first) - (a === first) || columns.advantage[b] - columns.advantage[a]);
  const prompt = h('div.prompt', {}, '…');
  table.prompt(from).then((entry) => fill(prompt, promptBlock(entry, table), columnsBlock(entry)), () => fill(prompt, 'cannot be read'));
  fill(detail,
    h('header.detail-head', {}, h('h2', {}, `Step ${columns.step[from]}, group ${columns.group[from] + 1}`),
      h('span.facts', {}, [table.taskOf(from), `${rows.length} completions`, `mean ${number(groups.mean[g])}`,
        `spread ${number(groups.spread[g])}`, `${columns.prompt_tokens[from]} prompt tokens`].filter(Boolean).join(' · ')),
      h('button.link', {on: {click: () => openPrompt(view.state.source, columns.prompt[from])}}, 'this prompt over time')),
    prompt, h('div.cards', {}, rows.map((row) => completionCard(table, row))));
  detail.scrollTop = 0;
  if (view.state.source === 0 && view.node.isConnected) setAddress(`groups/${columns.step[from]}/${columns.group[from] + 1}`);
}
