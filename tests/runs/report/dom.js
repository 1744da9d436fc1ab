// As much of a document as the page needs to build its elements, for tests without a browser.
// Arguments: folder of the page's scripts, file with {data, texts, columns, directory}. Prints what the views are made of.

const fs = require('fs');

class Base {
  constructor() { this.childNodes = []; this.parent = null; }
  append(...children) {
    for (const child of children) {
      const node = typeof child === 'string' ? new TextNode(child) : child;
      node.parent = this;
      this.childNodes.push(node);
    }
  }
  remove() { if (this.parent) this.parent.childNodes.splice(this.parent.childNodes.indexOf(this), 1); this.parent = null; }
  replaceChildren(...children) { this.childNodes = []; this.append(...children); }
  get textContent() { return this.childNodes.map((node) => node.textContent).join(''); }
  set textContent(text) { this.childNodes = [new TextNode(String(text))]; }
}
class TextNode extends Base {
  constructor(text) { super(); this.text = text; }
  get textContent() { return this.text; }
}
class Element extends Base {
  constructor(tag) { super(); Object.assign(this, {tag, attributes: {}, className: '', listeners: {}, style: {setProperty() {}}, isConnected: true}); }
  setAttribute(name, value) { this.attributes[name] = value; if (name === 'class') this.className = value; }
  addEventListener(type, listener) { this.listeners[type] = listener; }
  all(name) { return this.childNodes.flatMap((node) => (node instanceof Element ? [...(node.is(name) ? [node] : []), ...node.all(name)] : [])); }
  is(name) { return name === this.tag || this.className.split(' ').includes(name); }
}

const [folder, file] = process.argv.slice(2);
const {data, texts, columns, directory, blocks = {}, prompts = []} = JSON.parse(fs.readFileSync(file, 'utf8'));
const nothing = class { observe() {} };
Object.assign(globalThis, {
  Node: Base, IntersectionObserver: nothing, ResizeObserver: nothing, requestAnimationFrame: (f) => f(), matchMedia: () => ({matches: false}),
  document: {
    createElement: (tag) => new Element(tag), createElementNS: (_, tag) => new Element(tag), createTextNode: (text) => new TextNode(text),
    getElementById: (id) => (id === 'data' ? {textContent: JSON.stringify(data)} : id in blocks ? {textContent: blocks[id]} : null), documentElement: {dataset: {}, classList: {add() {}, toggle() {}}},
  },
});
const names = fs.readdirSync(folder).filter((name) => name.endsWith('.js') && !name.startsWith('90')).sort();
const script = names.map((name) => fs.readFileSync(`${folder}/${name}`, 'utf8')).join('\n');
const page = new Function(`'use strict';\n${script}\nreturn {app, adopt, promptBlock, completionCard, toolsView, rowFilter, chatBlock, FINISHES, TRUNCATED};`)();

async function main() {
  page.app.data.runs.forEach((run, number) => page.adopt(run, number));
  const table = page.app.runs[0].completions[0], rows = columns.step.map((_, row) => row);
  for (const name of ['total', 'logprob', 'advantage']) columns[name] = columns[name].map((value) => (value === null ? NaN : value));
  Object.assign(table, {columns, rows: rows.length, rewards: directory.rewards, tasks: directory.tasks, text: async (row) => texts[row]});
  const cards = rows.map((row) => page.completionCard(table, row));
  const shown = prompts.map((entry) => { const root = new Element('div'); root.append(...[page.promptBlock(entry, table)].flat(2)); return root; });
  await new Promise((done) => setTimeout(done, 20));
  const said = (node) => node.all('bubble').map((one) => ({injected: one.is('injected'), text: one.textContent}));
  const long = page.chatBlock({messages: Array.from({length: 90}, (_, i) => ({role: i % 2 ? 'tool' : 'assistant', content: `m${i}`})), turns: []});
  const before = long.all('bubble').length;
  long.all('button')[0].listeners.click();
  console.log(JSON.stringify({
    cards: cards.map((card) => ({
      facts: card.all('facts')[0].textContent, bubbles: said(card), turns: card.all('turn').map((node) => node.textContent),
      calls: card.all('calls').map((node) => node.textContent), prompt: card.all('own-prompt').map((node) => node.textContent),
      marks: card.all('hidden-mark').map((node) => node.textContent), tags: [...new Set(tagsOf(card))],
    })),
    tools: page.toolsView().all('tr').map((row) => row.childNodes.map((cell) => cell.textContent)),
    filters: Object.fromEntries(['some', 'none', 'failed'].map((calls) => [calls, rows.filter(page.rowFilter({calls}, table))])),
    cut: rows.filter(page.rowFilter({finish: 'length'}, table)), long: [before, long.all('bubble').length],
    prompts: shown.map((root) => ({text: root.textContent, tags: [...new Set(tagsOf(root))], nodes: [...root.all('img'), ...root.all('a')].map((n) => [n.tag, n.attributes])})),
    finishes: page.FINISHES, truncated: page.TRUNCATED,
  }));
}

function tagsOf(node) { return [node.tag, ...node.childNodes.filter((child) => child instanceof Element).flatMap(tagsOf)]; }

main();
