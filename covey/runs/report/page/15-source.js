// Where completions come from: blobs inside this page, or the server of a run that goes on.

/** The blocks of one source: compressed in this page, or read from the record by a server on this machine. */
class Source {
  constructor(run, position, facts) {
    Object.assign(this, facts);
    this.run = run;
    this.id = `b${run}-${position}`;
    this.query = `run=${run}&source=${position}`;
  }

  async numbers(from = 0) { return (await this.block('numbers', 'numbers', '&from=' + from)).buffer; }
  async excerpts() { return parseJson(await this.block('excerpts', 'excerpts', '')); }
  async texts(chunk) { return parseJson(await this.block('text-' + chunk, 'texts', '&chunk=' + chunk)); }
  async prompts(chunk) { return parseJson(await this.block('prompt-' + chunk, 'prompts', '&chunk=' + chunk)); }

  /** The address of a small picture: its bytes, or, where this page has no room for them, the file of the record. */
  async picture(digest) {
    if (!/^[0-9a-f]{64}$/.test(digest)) throw new Error('no digest');
    if (app.data.live) {
      const response = await fetch(`picture?${this.query}&digest=${digest}`, {cache: 'no-store'});
      if (!response.ok) throw new Error(`picture: ${response.status}`);
      return 'data:image/webp;base64,' + await response.text();
    }
    const held = document.getElementById(`b${this.run}-0-picture-${digest}`), folder = app.data.runs[this.run].pictures;
    if (!held && !folder) throw new Error('not recorded');
    return held ? 'data:image/webp;base64,' + held.textContent : `${folder}/${digest}.webp`;
  }

  async block(name, path, more) {
    if (!app.data.live) return inflate(document.getElementById(`${this.id}-${name}`).textContent);
    const response = await fetch(`${path}?${this.query}${more}`, {cache: 'no-store'});
    if (!response.ok) throw new Error(`${path}: ${response.status}`);
    return new Uint8Array(await response.arrayBuffer());
  }
}

async function inflate(base64) {
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

function parseJson(bytes) { return JSON.parse(new TextDecoder().decode(bytes)); }

/** The last things that were asked for, so that scrolling back does not ask again. */
class Recent {
  constructor(limit, load) { this.limit = limit; this.load = load; this.held = new Map(); }

  get(key) {
    const known = this.held.get(key);
    if (known) this.held.delete(key);
    const promise = known || this.load(key);
    this.held.set(key, promise);
    promise.catch(() => this.held.delete(key));
    if (this.held.size > this.limit) this.held.delete(this.held.keys().next().value);
    return promise;
  }

  clear() { this.held.clear(); }
}

/** The completions of one source: numbers in typed arrays, texts when they are shown. */
class Completions {
  constructor(source) {
    this.source = source;
    this.name = source.name;
    this.rows = 0;
    this.columns = {};
    this.textChunks = new Recent(60, (chunk) => source.texts(chunk));
    this.promptChunks = new Recent(60, (chunk) => source.prompts(chunk));
    this.loading = null;
  }

  /** Load the numbers once. */
  ready() {
    this.loading = this.loading || this.load();
    return this.loading;
  }

  async load() {
    this.take(await this.source.numbers());
    this.excerptList = await this.source.excerpts();
    return this;
  }

  /** Add the rows that came in since; a record that was cut back (a resume) is read anew. */
  async refresh(rows) {
    if (!this.loading) return;
    await this.loading;
    const anew = rows < this.rows;
    if (rows === this.rows && !anew) return;
    if (anew) { this.rows = 0; this.columns = {}; }
    this.textChunks.clear();
    this.promptChunks.clear();
    this.take(await this.source.numbers(this.rows));
    this.excerptList = await this.source.excerpts();
  }

  take(buffer) {
    const size = new DataView(buffer).getUint32(0, true);
    const directory = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
    const types = {i4: Int32Array, f4: Float32Array, u1: Uint8Array};
    for (const [name, kind, offset, length] of directory.columns) {
      this.columns[name] = joined(this.columns[name], new types[kind](buffer, 4 + size + offset, length));
    }
    this.tasks = directory.tasks;
    this.rewards = directory.rewards;
    this.rows = this.columns.step ? this.columns.step.length : 0;
    this.groups = groupsOf(this.columns, this.rows);
  }

  taskOf(row) { const task = this.columns.task[row]; return task < 0 ? null : this.tasks[task]; }
  excerptOf(row) { return this.excerptList[this.columns.prompt[row]] || ''; }

  async text(row) {
    const chunk = await this.textChunks.get(Math.floor(row / this.source.chunk));
    return chunk[row % this.source.chunk] || {};
  }

  async prompt(row) {
    const number = this.columns.prompt[row];
    const chunk = await this.promptChunks.get(Math.floor(number / this.source.chunk));
    return chunk[number % this.source.chunk] || {};
  }
}

function joined(before, after) {
  if (!before || !before.length) return after;
  const both = new after.constructor(before.length + after.length);
  both.set(before);
  both.set(after, before.length);
  return both;
}

/** First row of each group (and one past the last), mean, best and signal of each group. */
function groupsOf(columns, rows) {
  const starts = [];
  for (let i = 0; i < rows; i++) {
    if (!i || columns.step[i] !== columns.step[i - 1] || columns.group[i] !== columns.group[i - 1]) starts.push(i);
  }
  const groups = {
    count: starts.length, start: Int32Array.from([...starts, rows]), mean: new Float32Array(starts.length),
    best: new Float32Array(starts.length), spread: new Float32Array(starts.length),
    signal: new Float32Array(starts.length), tokens: new Float32Array(starts.length),
  };
  for (let g = 0; g < groups.count; g++) summarize(columns, groups, g);
  return groups;
}

function summarize(columns, groups, g) {
  let n = 0, sum = 0, squares = 0, best = -Infinity, signal = 0, tokens = 0;
  const from = groups.start[g], to = groups.start[g + 1];
  for (let i = from; i < to; i++) {
    signal += Math.abs(columns.advantage[i]);
    tokens += columns.tokens[i];
    const total = columns.total[i];
    if (Number.isNaN(total)) continue;
    n += 1; sum += total; best = Math.max(best, total);
  }
  const mean = n ? sum / n : NaN;
  for (let i = from; i < to; i++) if (!Number.isNaN(columns.total[i])) squares += (columns.total[i] - mean) ** 2;
  groups.mean[g] = mean;
  groups.best[g] = n ? best : NaN;
  groups.spread[g] = n > 1 ? Math.sqrt(squares / (n - 1)) : 0;
  groups.signal[g] = signal / Math.max(1, to - from);
  groups.tokens[g] = tokens / Math.max(1, to - from);
}
