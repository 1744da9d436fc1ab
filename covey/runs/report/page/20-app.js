// What the whole page shares: the runs, the theme, where one is, and who listens.

const FINISHES = ['stop', 'stop_string', 'length', 'turns', 'tool', 'environment', 'deadline', 'failed'];
const TRUNCATED = ['length', 'turns', 'deadline']; // ends that a limit made
const FINISH_WORDS = {
  length: 'cut off', turns: 'out of turns', deadline: 'out of time', tool: 'ended by a tool', environment: 'ended by the environment', failed: 'failed',
};
const STATUSES = ['value', 'not_applicable', 'gated', 'failed'];
const STATUS_WORDS = {value: '', not_applicable: 'n/a', gated: 'gated', failed: 'failed'};
const ADVANTAGE_LIMIT = 2.5; // where the bars of advantages end

const app = {
  data: JSON.parse(document.getElementById('data').textContent),
  runs: [],
  run: 0,           // the run that groups, prompts, failures and settings are shown of
  hidden: new Set(), // runs left out of comparisons
  x: 'step',
  smooth: 0.4,
  logarithmic: false,
  cursor: null,     // where all charts are read, on the axis that is chosen
  listeners: new Map(),
};

/** Tell everybody who listens; a listener whose node left the page is forgotten. */
function emit(type, detail) {
  for (const [listener, node] of [...(app.listeners.get(type) || [])]) {
    if (node && !node.isConnected) app.listeners.get(type).delete(listener);
    else listener(detail);
  }
}

function listen(type, node, listener) {
  if (!app.listeners.has(type)) app.listeners.set(type, new Map());
  app.listeners.get(type).set(listener, node);
}

function setCursor(x) { app.cursor = x; emit('cursor', x); }

/** A run with its sources of completions. */
function adopt(run, number) {
  const kept = app.runs[number];
  run.number = number;
  run.completions = run.sources.map((facts, i) => {
    const known = kept && kept.completions[i];
    if (known && known.name === facts.name) { Object.assign(known.source, facts); return known; }
    return new Completions(new Source(number, i, facts));
  });
  app.runs[number] = run;
  return run;
}

/** Whether a limit ended a completion. */
function isCut(columns, row) { return TRUNCATED.includes(FINISHES[columns.finish[row]]); }

/** What tools did in a source; null where there were none. */
function toolsOf(table) { return table.source.tools || null; }

function currentRun() { return app.runs[app.run]; }
function shownRuns() { return app.runs.filter((run) => !app.hidden.has(run.number)); }
function severalRuns() { return app.runs.length > 1; }
function seriesColor(i) { return `var(--c${i % 8})`; }
/** The colour of a reward or a task: the same in every chart. The total, and what has no name, have the first. */
function nameColor(name) {
  const names = [...new Set(app.runs.flatMap((run) => [...rewardNames(run), ...taskNames(run)]))];
  return seriesColor(names.indexOf(name) + 1);
}

function runColor(run) { return seriesColor(run.number); }

/** Sentence about the state of a run. */
function stateWord(run) {
  return {running: 'running', finished: 'finished', interrupted: 'interrupted', failed: 'failed', killed: 'killed'}[run.state];
}

function remember(key, value) { try { localStorage.setItem('covey-' + key, value); } catch { /* files may not remember */ } }
function recall(key) { try { return localStorage.getItem('covey-' + key); } catch { return null; } }

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  remember('theme', theme || '');
  emit('theme');
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
}
