// The samples of one run as rows of tokens. Only rows near the screen are drawn, and of these only what changed.
"use strict";

oddlm.Rows = class {
  static UNFOLDED = 16; // up to so many samples, the repeated ones are shown too
  static NARROW = 600; // pixels of a screen that has no room for them
  static NEAR = 300; // pixels outside of it where rows are drawn already

  constructor(place, heading, words) {
    this.place = place;
    this.heading = heading;
    this.words = words; // of a run
    this.told = oddlm.el("p", { class: "quiet" }, words(null));
    this.run = null;
    this.steps = 0;
    this.rows = []; // {row, item, tokens, cells, breaks, keys, seen}
    this.observer = new IntersectionObserver((entries) => this.see(entries), { rootMargin: `${oddlm.Rows.NEAR}px` });
    this.list = oddlm.el("ol", { class: "samples" });
    this.summary = oddlm.el("p", { class: "summary" });
    place.replaceChildren(oddlm.el("h2", {}, heading), this.told, this.summary, this.list);
    for (const event of ["pointerover", "focusin"]) this.list.addEventListener(event, (e) => this.point(e.target));
    this.list.addEventListener("pointerleave", oddlm.details.hide);
    this.list.addEventListener("focusout", oddlm.details.hide);
    this.list.addEventListener("keydown", (event) => this.move(event));
  }

  // Anew, after a run has begun, ended or been judged.
  show(run) {
    const { el, count } = oddlm;
    this.run = run;
    this.observer.disconnect();
    this.rows = [];
    const items = this.run.groups().map((rows) => this.group(rows));
    this.list.replaceChildren(...items);
    for (const known of this.rows) known.seen = this.near(known.item); // the observer tells it one frame later: a flash
    const { end, error, n } = this.run;
    const parts = [end ? `${this.run.different === 1 ? "One answer" : `${this.run.different} different answers`} in ${count(n, "sample")}` : `${count(n, "sample")}${error ? ", unfinished" : ""}`];
    if (this.run.right !== null) parts.push(this.run.right ? `${this.run.right} of ${n} ${this.run.right === 1 ? "solves" : "solve"} it` : "none solves it");
    this.summary.replaceChildren(el("b", {}, parts.join("; ")));
    this.told.textContent = this.words(this.run);
    this.place.classList.toggle("solved", Boolean(this.run.right));
  }

  group(rows) {
    const { el } = oddlm;
    const items = rows.map((row) => this.item(row));
    if (rows.length === 1) return items[0];
    const rest = el("ol", { class: "samples" }, items.slice(1));
    rest.hidden = this.run.n > oddlm.Rows.UNFOLDED || innerWidth < oddlm.Rows.NARROW;
    const button = el("button", { type: "button", class: "fold", "data-times": rows.length, "aria-expanded": String(!rest.hidden) });
    const name = () => { button.textContent = `${rest.hidden ? "▸" : "▾"} The same answer ${rows.length} times`; };
    button.addEventListener("click", () => {
      rest.hidden = !rest.hidden;
      button.setAttribute("aria-expanded", String(!rest.hidden));
      name();
      this.draw();
    });
    name();
    return el("li", { class: "group" }, button, el("ol", { class: "samples" }, items[0]), rest);
  }

  item(row) {
    const { el, visible } = oddlm;
    const tokens = el("div", { class: "tokens", role: "group", "aria-label": `Sample ${row + 1}` });
    tokens.style.minHeight = `${Math.min(12, 1.7 * Math.ceil(this.run.length / 16))}em`; // until it is drawn
    const verdict = this.run.verdicts ? this.run.verdicts[row] : null;
    const said = verdict && el("span", { class: verdict.correct ? "verdict right" : "verdict", title: visible(verdict.detail) },
      verdict.correct ? "✓ solved" : verdict.correct === null ? "not scored" : "✗ wrong");
    const item = el("li", { class: "sample" }, el("span", { class: "number" }, `${row + 1}`), tokens, said);
    const known = { row, item, tokens, cells: [], breaks: [], keys: [], seen: false };
    tokens.known = known;
    this.rows.push(known);
    this.observer.observe(item);
    return item;
  }

  near(item) {
    const { top, bottom } = item.getBoundingClientRect();
    return item.offsetParent !== null && bottom > -oddlm.Rows.NEAR && top < innerHeight + oddlm.Rows.NEAR;
  }

  see(entries) {
    for (const entry of entries) {
      const known = entry.target.querySelector(".tokens").known;
      known.seen = entry.isIntersecting;
      if (known.seen) this.drawRow(known);
    }
  }

  draw(steps = this.steps) {
    this.steps = steps;
    for (const known of this.rows) if (known.seen) this.drawRow(known);
  }

  drawRow(known) {
    const { run, steps } = this;
    if (!known.cells.length) {
      known.cells = Array.from({ length: run.length }, (_, position) => {
        const cell = oddlm.el("span", { class: "token", tabindex: position ? "-1" : "0" });
        cell.position = position;
        return cell;
      });
      known.keys = new Array(run.length).fill("");
      known.breaks = known.cells.map(() => new Text());
      known.tokens.replaceChildren(...known.cells.flatMap((cell, position) => [cell, known.breaks[position]]));
      known.tokens.style.minHeight = "";
    }
    let ended = false;
    for (let position = 0; position < run.length; position++) {
      const found = run.at(known.row, position, steps);
      const kind = this.kind(known.row, position, found) + (ended ? " after" : "");
      const token = found ? found.spot.token : run.start.mask_id;
      ended = ended || (found !== null && run.ends.has(token));
      const key = `${token} ${kind}`;
      if (known.keys[position] === key) continue;
      known.keys[position] = key;
      known.cells[position].className = `token ${kind}`;
      [known.cells[position].textContent, known.breaks[position].data] = oddlm.Rows.broken(oddlm.visible(run.piece(token)));
    }
  }

  // A line break at a token's end, and the indent after it, stand behind the token: its frame stays in one piece.
  static broken(text) {
    const end = text.trimEnd().length, at = text.indexOf("\n", end);
    return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at)];
  }

  kind(row, position, found) {
    if (found === null) return this.run.awaited(row, position, this.steps) ? "mask only-plain" : "mask";
    const { spot, step } = found;
    const fresh = step === Math.min(this.steps, this.run.steps.length) - 1 ? " fresh" : "";
    const end = this.run.ends.has(spot.token) ? " end" : "";
    if (this.run.forks(step)) return `forked${end}${fresh}`;
    if (spot.token !== spot.plain_token) return `changed${spot.by === "pushed" ? " early" : ""}${end}${fresh}`;
    return (spot.by === "pushed" ? "only-diverse" : "") + end + fresh;
  }

  point(cell) {
    if (!cell.classList.contains("token")) return;
    const row = cell.parentElement.known.row;
    const found = this.run.at(row, cell.position, this.steps);
    const awaited = found ? null : this.run.awaited(row, cell.position, this.steps);
    if (found) oddlm.details.show(cell, this.run, row, cell.position, found.step, found.spot);
    else if (awaited) oddlm.details.show(cell, this.run, row, cell.position, Math.min(this.steps, this.run.steps.length) - 1, awaited);
    else oddlm.details.hide();
  }

  // Arrows go from token to token: left and right in a sample, up and down between samples.
  move(event) {
    const cell = event.target;
    if (!cell.classList.contains("token")) return;
    if (event.key === "Escape") oddlm.details.hide();
    const tokens = cell.parentElement;
    let next = null;
    if (event.key === "ArrowRight") next = cell.nextElementSibling;
    else if (event.key === "ArrowLeft") next = cell.previousElementSibling;
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const shown = this.rows.filter((known) => known.item.offsetParent !== null);
      const other = shown[shown.indexOf(tokens.known) + (event.key === "ArrowDown" ? 1 : -1)];
      if (other) {
        if (!other.cells.length) this.drawRow(other);
        next = other.cells[cell.position];
      }
    } else return;
    event.preventDefault();
    event.stopPropagation();
    if (next) {
      next.tabIndex = 0;
      if (next.parentElement === tokens) cell.tabIndex = -1;
      next.focus();
    }
  }
};
