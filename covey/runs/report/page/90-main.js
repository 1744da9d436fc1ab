// The frame of the page: head, tabs, keys, and, beside a run that goes on, the clock that asks for news.

const VIEWS = [
  ['overview', 'Overview', overview], ['curves', 'Curves', curvesView], ['groups', 'Groups', groupsView], ['prompts', 'Prompts', promptsView],
  ['evaluations', 'Evaluations', evaluationsView], ['failures', 'Failures', failuresView], ['hints', 'Hints', hintsView], ['run', 'Run', runView],
  ['tools', 'Tools', toolsView],
];

/** The views that there is something for: without tools there is none of them. */
function views() { return VIEWS.filter(([name]) => name !== 'tools' || app.runs.some((run) => run.completions.some(toolsOf))); }
const POLL_MS = 2000;
const KEYS = [
  ['1 – 9', 'the tabs'], ['j k ↑ ↓', 'move in a list'], ['/', 'to the search field'], ['← →', 'move the cursor of a chart, or B of a prompt'],
  ['t', 'light or dark'], ['?', 'this list'], ['Esc', 'leave a field, close this list'],
];

const frame = {head: h('header.top'), tabs: h('nav.tabs', {role: 'tablist', 'aria-label': 'views'}), main: h('main', {id: 'main', role: 'tabpanel', tabindex: -1}), view: null};

function go(name) {
  if (frame.view !== name || !frame.main.firstChild) {
    frame.view = name;
    setAddress(name);
    fill(frame.main, views().find((view) => view[0] === name)[2]());
    scrollTo(0, 0);
  } else emit('rebuild');
  header();
  document.getElementById('tab-' + name).scrollIntoView({block: 'nearest', inline: 'nearest'});
}

/** Put into the address where one is, so that a link leads there. */
function setAddress(place) {
  frame.address = '#' + place;
  history.replaceState(null, '', frame.address);
}

/** Go where the address says: a tab, or a group of training by step and number, as in #groups/12/3. */
function follow() {
  const [name, step, number] = location.hash.slice(1).split('/');
  if (name === 'groups' && step && number) Object.assign(groupsState, {source: 0, kind: 'groups', address: [Number(step), Number(number)]});
  go(views().some((view) => view[0] === name) ? name : 'overview');
}

function header() {
  fill(frame.head, h('div.brand', {}, 'covey'), severalRuns() ? runLegend() : runTitle(currentRun()),
    h('div.top-tools', {}, runSelect(), h('button.icon', {title: 'keys (?)', 'aria-label': 'keys', on: {click: showKeys}}, '?'),
      h('button.icon', {title: 'light or dark (t)', 'aria-label': 'light or dark', on: {click: turnTheme}}, '◐')));
  const counts = {failures: currentRun().failures.reduce((n, f) => n + f.count, 0), hints: currentRun().hints.filter((hint) => hint.holds).length};
  const focused = frame.tabs.contains(document.activeElement) && document.activeElement.id, scrolled = frame.tabs.scrollLeft;
  fill(frame.tabs, views().map(([name, title], i) => h('button', {role: 'tab', id: 'tab-' + name, 'aria-selected': String(name === frame.view), 'aria-controls': 'main',
    title: `${title} (${i + 1})`, tabindex: name === frame.view ? 0 : -1, on: {click: () => go(name), keydown: tabKey}}, title, counts[name] ? h('span.count', {}, String(counts[name])) : null)));
  frame.main.setAttribute('aria-labelledby', 'tab-' + frame.view);
  frame.tabs.scrollLeft = scrolled;
  if (focused) document.getElementById(focused).focus({preventScroll: true});
}

function tabKey(event) {
  const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
  if (!by) return;
  const there = views(), at = there.findIndex((view) => view[0] === frame.view), to = there[(at + by + there.length) % there.length][0];
  event.preventDefault();
  go(to);
  document.getElementById('tab-' + to).focus();
}

function runTitle(run) {
  const last = lastOf(run.curves.steps) || 0, max = run.header.max_steps;
  const words = [`step ${last.toLocaleString('en-US')}${max ? ' of ' + max.toLocaleString('en-US') : ''}`, elapsed(run), lastPart((run.header.model || {}).name), engineWord(run.header.engine)].filter(Boolean);
  return h('div.run-head', {}, h('h1', {}, run.name), h('span.state.' + run.state, {}, stateWord(run)), h('span.facts', {}, words.join(' · ')));
}

/** What samples, where it is not the trainer itself. */
function engineWord(engine) {
  const urls = engine && engine.urls;
  return urls && urls.length && `sampled by ${[engine.kind, engine.release].filter(Boolean).join(' ')} on ${count(urls.length, 'server')}`;
}

/** The name of a model, or of its folder: a page that one sends around does not tell where that is. */
function lastPart(name) { return name && /^([/\\~]|[A-Za-z]:)/.test(name) ? name.split(/[/\\]/).filter(Boolean).pop() : name; }

function elapsed(run) {
  const {times} = run.curves;
  return times.length ? duration(times[times.length - 1] - run.started) : '';
}

function runLegend() {
  return h('div.run-head.legend-head', {}, app.runs.map((run) => h('button.run-chip', {'aria-pressed': String(!app.hidden.has(run.number)), title: 'show or hide', on: {click: () => {
    if (!app.hidden.delete(run.number) && app.hidden.size < app.runs.length - 1) app.hidden.add(run.number);
    emit('rebuild');
    emit('curves');
    header();
  }}}, h('i.swatch', {style: {'--c': runColor(run)}}), run.name, h('small', {}, stateWord(run)))));
}

function turnTheme() { setTheme(isDark() ? 'light' : 'dark'); }

function showKeys() {
  const dialog = h('dialog.keys', {on: {close: () => dialog.remove(), click: () => dialog.close()}}, h('h2', {}, 'Keys'),
    h('dl', {}, KEYS.map(([key, word]) => [h('dt', {}, key), h('dd', {}, word)])));
  document.body.append(dialog);
  dialog.showModal();
}

function pressed(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== 'checkbox' && event.target.type !== 'range';
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (typing) { if (event.key === 'Escape') event.target.blur(); return; }
  const view = views()[Number(event.key) - 1];
  if (view) go(view[0]);
  else if (event.key === 't') turnTheme();
  else if (event.key === '?') showKeys();
  else if (event.key === '/') { const field = frame.main.querySelector('.search'); if (field) { event.preventDefault(); field.focus(); } }
  else if (/^(j|k|ArrowDown|ArrowUp|PageDown|PageUp|Home|End)$/.test(event.key)) toList(event);
}

/** Keys of lists work without clicking into the list first. */
function toList(event) {
  const list = frame.main.querySelector('.list');
  if (!list || event.defaultPrevented || event.target.closest('.detail, .strip-box, .plot')) return;
  list.focus({preventScroll: true});
  list.dispatchEvent(new KeyboardEvent('keydown', {key: event.key, bubbles: false}));
  event.preventDefault();
}

/** Ask the server for news while the run goes on; nothing is sent when nothing has changed. */
async function poll() {
  try {
    const response = await fetch('summary?version=' + encodeURIComponent(app.data.stamp || ''), {cache: 'no-store'});
    document.documentElement.classList.toggle('offline', !response.ok);
    if (response.status === 200) await takeNews(await response.json());
  } catch { document.documentElement.classList.add('offline'); }
  setTimeout(poll, document.hidden ? 5 * POLL_MS : POLL_MS);
}

async function takeNews(data) {
  app.data.stamp = data.stamp;
  data.runs.forEach((run, i) => adopt(run, i));
  await Promise.all(app.runs.flatMap((run) => run.completions.map((table) => table.refresh(table.source.rows).catch(() => null))));
  emit('data');
  header();
}

function begin() {
  const theme = recall('theme');
  if (theme) document.documentElement.dataset.theme = theme;
  app.data.runs.forEach((run, i) => adopt(run, i));
  document.getElementById('app').append(frame.head, frame.tabs, frame.main, footer());
  addEventListener('keydown', pressed);
  addEventListener('hashchange', () => { if (location.hash !== frame.address) follow(); });
  follow();
  document.documentElement.classList.add('ready');
  if (app.data.live) poll();
}

function footer() {
  const words = app.data.live ? 'live from this machine' : `written ${moment(app.data.written)}`;
  return h('footer.foot', {}, `covey ${app.data.version} · ${words}`, h('span.lost', {}, 'the server does not answer'));
}

begin();
