// The same prompt over time: what the policy wrote at two steps, side by side, with what changed marked.

const promptsState = {source: null, order: 'visits', open: null, pick: 'best', text: ''};
const PROMPT_ORDERS = [['visits', 'most often seen'], ['gain', 'most improved'], ['loss', 'most worsened'], ['hard', 'hardest'], ['row', 'row of the dataset']];
const PICKS = [['best', 'best'], ['worst', 'worst'], ['first', 'first'], ['longest', 'longest']];

function openPrompt(source, prompt) {
  Object.assign(promptsState, {source, open: prompt, text: ''});
  go('prompts');
}

function promptsView() {
  const node = h('div.view.split-view'), tools = h('div.toolbar'), status = h('p.list-status'), detail = h('div.detail');
  const view = {node, tools, status, detail, found: [], state: promptsState};
  view.list = new VirtualList({rowHeight: 46, label: 'prompts', render: (i) => promptRow(view, view.found[i]), select: (i) => showPrompt(view, view.found[i])});
  fill(node, tools, h('div.split', {}, h('div.split-list', {}, status, view.list.node), detail));
  const start = () => startPrompts(view);
  start();
  listen('rebuild', node, start);
  listen('data', node, () => view.table && listPrompts(view, true));
  return node;
}

async function startPrompts(view) {
  const run = currentRun(), {state} = view;
  if (state.source === null || state.source >= run.completions.length) state.source = await sourceWithVisits(run);
  view.table = run.completions[state.source];
  fill(view.status, 'reading …');
  try { await view.table.ready(); } catch { fill(view.status, 'The completions of this run cannot be read.'); return; }
  fill(view.tools, sourceSelect(state.source, (i) => { state.source = i; startPrompts(view); }),
    select('order', PROMPT_ORDERS, state.order, (value) => { state.order = value; listPrompts(view); }),
    choice('which completion', PICKS, state.pick, (value) => { state.pick = value; if (view.shown) showPrompt(view, view.shown); }),
    searchField('find a prompt', (value) => { state.text = value; listPrompts(view); }));
  listPrompts(view);
  const wanted = view.found.findIndex((p) => p.prompt === state.open);
  state.open = null;
  if (view.found.length) view.list.choose(Math.max(0, wanted));
  else fill(view.detail, empty('No prompt', 'Nothing is recorded that could be compared.'));
}

/** Training, if it saw a prompt twice; else an evaluation set, which asks the same prompts every time. */
async function sourceWithVisits(run) {
  const training = await run.completions[0].ready().catch(() => null);
  if (training && run.completions.length > 1) {
    const prompts = new Set(training.columns.prompt || []).size;
    if (training.groups.count < 1.5 * prompts) return 1;
  }
  return 0;
}

/** Every prompt with the groups in which it was asked. */
function visitsByPrompt(table) {
  const found = new Map(), {groups, columns} = table;
  for (let g = 0; g < groups.count; g++) {
    const prompt = columns.prompt[groups.start[g]];
    if (!found.has(prompt)) found.set(prompt, {prompt, row: columns.row[groups.start[g]], at: groups.start[g], visits: []});
    found.get(prompt).visits.push(g);
  }
  return [...found.values()];
}

function listPrompts(view, keep = false) {
  const {table, state} = view, {groups} = table, wanted = state.text.trim().toLowerCase();
  const gain = (p) => groups.mean[p.visits[p.visits.length - 1]] - groups.mean[p.visits[0]] || 0;
  const mean = (p) => meanOf(p.visits.map((g) => groups.mean[g]).filter((v) => !Number.isNaN(v))) ?? Infinity;
  const orders = {
    visits: (a, b) => b.visits.length - a.visits.length || a.row - b.row, gain: (a, b) => gain(b) - gain(a), loss: (a, b) => gain(a) - gain(b),
    hard: (a, b) => mean(a) - mean(b), row: (a, b) => a.row - b.row,
  };
  view.found = visitsByPrompt(table).filter((p) => !wanted || table.excerptOf(p.at).toLowerCase().includes(wanted)).sort(orders[state.order]);
  const again = view.found.filter((p) => p.visits.length > 1).length;
  fill(view.status, `${count(view.found.length, 'prompt')}, ${again.toLocaleString('en-US')} seen more than once`, leftOutNote(table));
  view.list.show(view.found.length, {keep});
}

function promptRow(view, p) {
  const {table} = view, means = p.visits.map((g) => table.groups.mean[g]).map((v) => (Number.isNaN(v) ? null : v));
  return [
    h('span.row-step', {}, h('b', {}, String(p.visits.length)), h('small', {}, p.visits.length === 1 ? 'visit' : 'visits')),
    sparkline(thinned(means, 40), {width: 96}),
    h('span.row-mean', {}, number(lastOf(means))),
    h('span.row-text', {}, table.excerptOf(p.at) || h('span.muted', {}, 'row ' + p.row)),
  ];
}

function showPrompt(view, p) {
  const {table, detail} = view, last = p.visits.length - 1;
  view.shown = p;
  const prompt = h('div.prompt', {}, '…'), pair = h('div.pair'), strip = h('div.strip');
  table.prompt(p.at).then((entry) => fill(prompt, promptBlock(entry, table), columnsBlock(entry)), () => fill(prompt, 'cannot be read'));
  const chosen = {a: 0, b: last};
  const draw = () => { fill(strip, visitStrip(table, p, chosen, draw, strip)); showPair(view, p, chosen, pair); };
  fill(detail, h('header.detail-head', {}, h('h2', {}, table.taskOf(p.at) ? `${table.taskOf(p.at)}, row ${p.row}` : `Row ${p.row}`),
    h('span.facts', {}, count(p.visits.length, 'visit'))), prompt, strip, pair);
  draw();
  detail.scrollTop = 0;
}

/** All visits over the steps: a dot per completion, a line through the means; click or arrow keys choose what is compared. */
function visitStrip(table, p, chosen, draw, place) {
  if (p.visits.length < 2) return h('p.muted', {}, 'Seen once so far: there is nothing to compare yet.');
  const {groups, columns} = table, width = Math.max(240, place.clientWidth), height = 96, step = (g) => columns.step[groups.start[g]];
  const x0 = step(p.visits[0]), x1 = step(p.visits[p.visits.length - 1]), xs = (g) => 12 + ((step(g) - x0) / (x1 - x0 || 1)) * (width - 24);
  const [low, high] = extent(p.visits.flatMap((g) => [...columns.total.subarray(groups.start[g], groups.start[g + 1])]).filter((v) => !Number.isNaN(v)));
  const ys = (v) => height - 12 - ((v - low) / (high - low || 1)) * (height - 24);
  const marks = p.visits.flatMap((g) => Array.from({length: groups.start[g + 1] - groups.start[g]}, (_, i) => groups.start[g] + i)
    .filter((row) => !Number.isNaN(columns.total[row])).map((row) => s('circle.visit-dot', {cx: xs(g), cy: ys(columns.total[row]), r: 2})));
  const means = p.visits.filter((g) => !Number.isNaN(groups.mean[g])).map((g, i) => `${i ? 'L' : 'M'}${xs(g).toFixed(1)} ${ys(groups.mean[g]).toFixed(1)}`).join('');
  const chosenLines = ['a', 'b'].map((side) => [s('line.chosen', {x1: xs(p.visits[chosen[side]]), x2: xs(p.visits[chosen[side]]), y1: 4, y2: height - 4}),
    s('text.chosen-name', {x: xs(p.visits[chosen[side]]) + 4, y: 12}, side.toUpperCase())]);
  const drawing = s('svg', {viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true'}, marks, s('path.visit-mean', {d: means}), chosenLines);
  const pick = (event) => {
    const box = drawing.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * width;
    const to = p.visits.reduce((best, g, i) => (Math.abs(xs(g) - x) < Math.abs(xs(p.visits[best]) - x) ? i : best), 0);
    chosen[event.shiftKey || (!event.shiftKey && Math.abs(xs(p.visits[chosen.a]) - x) < Math.abs(xs(p.visits[chosen.b]) - x)) ? 'a' : 'b'] = to;
    draw();
  };
  const move = (event) => {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key], side = event.shiftKey ? 'a' : 'b';
    if (!by) return;
    event.preventDefault();
    chosen[side] = Math.min(p.visits.length - 1, Math.max(0, chosen[side] + by));
    draw();
    document.querySelector('.strip-box')?.focus();
  };
  return [h('div.strip-box', {tabindex: 0, role: 'group', 'aria-label': 'visits of this prompt; arrow keys move B, with shift A', on: {click: pick, keydown: move}}, drawing),
    h('p.muted.strip-note', {}, 'Click to choose A and B; ← → move B, with shift A.')];
}

function pickRow(table, g, pick) {
  const {groups, columns} = table, rows = Array.from({length: groups.start[g + 1] - groups.start[g]}, (_, i) => groups.start[g] + i);
  const value = {best: (r) => columns.total[r], worst: (r) => -columns.total[r], first: (r) => -r, longest: (r) => columns.tokens[r]}[pick];
  return rows.reduce((best, row) => (value(row) > value(best) || Number.isNaN(value(best)) ? row : best), rows[0]);
}

async function showPair(view, p, chosen, place) {
  const {table, state} = view, ticket = (view.pairing = (view.pairing || 0) + 1);
  const [a, b] = ['a', 'b'].map((side) => pickRow(table, p.visits[chosen[side]], state.pick));
  const [left, right] = await Promise.all([table.text(a), table.text(b)]).catch(() => [{}, {}]);
  if (view.pairing !== ticket) return;
  const both = a !== b && left.text !== undefined && right.text !== undefined;
  const marks = both ? difference(left.text.slice(0, SHOWN_CHARS), right.text.slice(0, SHOWN_CHARS)) : null;
  const word = PICKS.find(([key]) => key === state.pick)[1];
  const cards = (a === b ? [[b, 'B']] : [[a, 'A'], [b, 'B']]).map(([row, side]) => h('div.side-card', {}, h('h3', {}, h('span.side-name', {}, side), ` step ${table.columns.step[row]}`),
    completionCard(table, row, {parts: marks && (side === 'A' ? marks.a : marks.b), note: `${word} of its group`})));
  fill(place, both && !marks && h('p.muted', {}, 'The two texts differ too much for marks to help.'), h('div.pair-cards', {}, cards));
}
