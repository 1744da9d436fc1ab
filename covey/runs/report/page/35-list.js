// A list of any length of which only what is on the screen exists.

const MAX_SCROLL = 12e6; // browsers draw nothing beyond some tens of millions of pixels

/**
 * Rows of one height. `render(index)` gives the children of a row, or a promise of them; `select(index)` is told when a
 * row is chosen. Keys: arrows, j and k, page up and down, home, end.
 */
class VirtualList {
  constructor({rowHeight, render, select, label}) {
    Object.assign(this, {rowHeight, renderRow: render, onSelect: select, count: 0, selected: -1, from: -1, to: -1});
    this.id = 'list' + (VirtualList.made = (VirtualList.made || 0) + 1);
    this.space = h('div.list-space');
    this.node = h('div.list', {
      tabindex: 0, role: 'listbox', 'aria-label': label, on: {keydown: (e) => this.key(e), scroll: () => this.draw()},
    }, this.space);
    this.rows = new Map();
    this.draw = perFrame(() => this.render());
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  /** Show so many rows from the top, or where one was. */
  show(count, {keep = false} = {}) {
    this.count = count;
    this.scroll = Math.min(count * this.rowHeight, MAX_SCROLL);
    this.space.style.setProperty('height', this.scroll + 'px');
    if (!keep) { this.node.scrollTop = 0; this.selected = -1; }
    this.clear();
    this.draw();
  }

  clear() {
    this.rows.clear();
    this.space.replaceChildren();
  }

  get visibleRows() { return Math.ceil(this.node.clientHeight / this.rowHeight); }

  /** The first row on the screen; beyond MAX_SCROLL the scroll position is a share of the whole. */
  firstRow() {
    if (this.count * this.rowHeight <= MAX_SCROLL) return Math.floor(this.node.scrollTop / this.rowHeight);
    const share = this.node.scrollTop / Math.max(1, this.scroll - this.node.clientHeight);
    return Math.floor(share * (this.count - this.visibleRows));
  }

  topOf(index) {
    if (this.count * this.rowHeight <= MAX_SCROLL) return index * this.rowHeight;
    return this.node.scrollTop + (index - this.firstRow()) * this.rowHeight;
  }

  render() {
    if (!this.node.isConnected || !this.node.clientHeight) return;
    const first = this.firstRow(), from = Math.max(0, first - 6), to = Math.min(this.count, first + this.visibleRows + 7);
    for (const [index, row] of this.rows) if (index < from || index >= to) { row.remove(); this.rows.delete(index); }
    for (let index = from; index < to; index++) {
      const row = this.rows.get(index) || this.addRow(index);
      row.style.setProperty('transform', `translateY(${this.topOf(index)}px)`);
      row.setAttribute('aria-selected', String(index === this.selected));
    }
    this.node.setAttribute('aria-activedescendant', this.rows.has(this.selected) ? `${this.id}-${this.selected}` : '');
  }

  addRow(index) {
    const row = h('div.list-row', {
      id: `${this.id}-${index}`, role: 'option', 'aria-posinset': index + 1, 'aria-setsize': this.count,
      style: {height: this.rowHeight + 'px'}, on: {click: () => this.choose(index)},
    });
    const content = this.renderRow(index);
    if (content instanceof Promise) content.then((children) => fill(row, children), () => fill(row, 'cannot be read'));
    else append(row, [content]);
    this.rows.set(index, row);
    this.space.append(row);
    return row;
  }

  choose(index, {quiet = false} = {}) {
    if (!this.count) return;
    this.selected = Math.min(this.count - 1, Math.max(0, index));
    this.reveal(this.selected);
    this.draw();
    if (!quiet) this.onSelect(this.selected);
  }

  reveal(index) {
    const first = this.firstRow(), whole = Math.max(1, Math.floor(this.node.clientHeight / this.rowHeight));
    if (index >= first + (this.node.scrollTop % this.rowHeight > 1 ? 1 : 0) && index < first + whole) return;
    const wanted = index < first + 1 ? index : index - whole + 1;
    const long = this.count * this.rowHeight > MAX_SCROLL;
    this.node.scrollTop = long
      ? (wanted / Math.max(1, this.count - this.visibleRows)) * (this.scroll - this.node.clientHeight)
      : wanted * this.rowHeight;
  }

  key(event) {
    const page = Math.max(1, this.visibleRows - 2);
    const move = {ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity}[event.key];
    if (move === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    this.choose(move === -Infinity ? 0 : move === Infinity ? this.count - 1 : this.selected + move);
  }
}
