// The samples behind a cell, page by page. A page from disk may not read files, so each page of samples is a script.
"use strict";

oddlm.samples = (() => {
  const { byId, el } = oddlm;
  const { data, state, host, words, options, cellOf } = oddlm.cells;
  const pages = new Map();

  function choose(cell, problem = null) {
    state.cell = cell;
    state.page = problem === null ? 0 : Math.floor(problem / data.page);
    state.problem = problem;
    for (const button of document.querySelectorAll("button[data-cell]")) button.setAttribute("aria-pressed", String(button.dataset.cell === cell.key));
    const inside = byId("samples").contains(document.activeElement);
    draw();
    if (inside) return;
    byId("samples").scrollIntoView({ block: "start" });
    byId("chosen").focus({ preventScroll: true });
  }

  const first = () => state.problem ?? state.page * data.page;

  // What had the focus has it again after the section is drawn anew.
  function draw() {
    const held = byId("samples").contains(document.activeElement) ? document.activeElement.id : "";
    fill();
    if (held) (byId(held)?.disabled === false ? byId(held) : byId("chosen"))?.focus({ preventScroll: true });
  }

  function fill() {
    const place = host("samples"), { cell, bench } = state;
    if (!cell) return place.replaceChildren(words(bench.shown ? "Select a cell of the table or a point of a chart." : bench.rule));
    const parts = [el("h3", { id: "chosen", tabindex: -1 }, cell.label), el("p", {}, cell.summary), el("p", { class: "quiet" }, bench.rule)];
    if (!bench.shown) return place.replaceChildren(...parts);
    const found = pages.get(`${cell.key}/${state.page}`);
    place.replaceChildren(...parts, pager(cell, bench), ...(found ? found.map((row, i) => problem(row, cell, state.page * data.page + i)) : [words("Loading ...")]));
    if (!found) load(cell, state.page);
    return undefined;
  }

  function pager(cell, bench) {
    const count = Math.ceil(bench.shown / data.page);
    const turn = (by) => { state.page += by; state.problem = null; draw(); };
    const jump = el("select", { id: "problem", onchange: (event) => choose(cell, Number(event.target.value)) }, options(bench.problems.map((id, i) => [i, id]), first()));
    return el("div", { class: "pager" },
      el("button", { type: "button", id: "back", disabled: state.page === 0, onclick: () => turn(-1) }, "Previous"),
      el("span", {}, `Page ${state.page + 1} of ${count}`),
      el("button", { type: "button", id: "next", disabled: state.page + 1 >= count, onclick: () => turn(1) }, "Next"),
      el("label", {}, "Problem ", jump),
      cell.baseline ? el("button", { type: "button", id: "baseline", onclick: () => choose(cellOf(cell.baseline), first()) }, "Show its baseline") : null);
  }

  function problem(row, cell, index) {
    const right = row.samples.filter(([, correct]) => correct).length;
    const times = new Map();
    for (const [text, correct] of row.samples) {
      const key = `${correct} ${text}`;
      times.set(key, { text, correct, count: (times.get(key)?.count || 0) + 1 });
    }
    const texts = [...times.values()].sort((a, b) => Number(b.correct) - Number(a.correct)).map(({ text, correct, count }) => el("li", { class: correct ? "right" : "wrong" },
      el("span", { class: "mark" }, `${correct ? "✓ correct" : "✗ wrong"}${count > 1 ? ` ×${count}` : ""}`), el("pre", {}, text || "(empty)")));
    const told = `${right} of ${row.samples.length} correct, ${times.size} distinct; all runs: ${cell.right[index]} of ${cell.tried} correct`;
    return el("details", { class: "problem", open: index === first() }, el("summary", {}, el("b", {}, row.problem), " ", el("span", {}, told)),
      el("pre", { class: "prompt" }, row.prompt), el("ol", { class: "texts" }, texts));
  }

  function load(cell, page) {
    const name = `samples/${cell.key}/${page}.js`;
    const script = el("script", {
      src: name,
      onload: () => script.remove(),
      onerror: () => {
        script.remove();
        if (state.cell === cell && state.page === page) host("samples").lastChild.replaceWith(words(`${name} is missing: keep this page and its folders together.`));
      },
    });
    document.head.append(script);
  }

  // Each page of samples calls it.
  function take({ cell, page, rows }) {
    pages.set(`${cell}/${page}`, rows);
    if (state.cell?.key === cell && state.page === page) draw();
  }

  return { choose, draw, take };
})();
