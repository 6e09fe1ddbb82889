"use strict";
// The samples behind a cell, page by page. A page from disk may not read files, so each page of samples is a script.
const Samples = (() => {
  const { data, state, byId, host, signed, numberOf, make, words, options, cellOf, told } = Page;
  const pages = new Map();

  function choose(cell, problem = null) {
    state.cell = cell;
    state.page = problem === null ? 0 : Math.floor(problem / data.page);
    state.problem = problem;
    for (const button of document.querySelectorAll("button[data-cell]"))
      button.setAttribute("aria-pressed", String(button.dataset.cell === cell.key));
    const inside = byId("samples").contains(document.activeElement);
    drawSamples();
    if (inside) return;
    byId("samples").scrollIntoView({ block: "start" });
    byId("chosen").focus({ preventScroll: true });
  }

  function summary(cell) {
    const n = String(cell.n),
      gain = cell.gains[n],
      paper = cell.published,
      lines = [];
    if (cell.passed[n])
      lines.push(
        `${told(cell, n)}; ${numberOf(cell.runs, "run")}${cell.seeds.length ? `, seed${cell.seeds.length === 1 ? "" : "s"} ${cell.seeds.join(", ")}` : ""}.`,
      );
    if (gain)
      lines.push(
        `Over ${cellOf(cell.baseline).label}: ${signed(gain[0])} points${gain[1] === null ? "" : ` [${signed(gain[1])}, ${signed(gain[2])}], interval over ${gain[3]}`}.`,
      );
    if (paper) lines.push(`Published: ${paper[0].toFixed(1)} ± ${paper[1].toFixed(1)} (${state.bench.whose}).`);
    if (cell.solved !== null) lines.push(`Problems with a right sample in some run: ${cell.solved} of ${state.bench.count}.`);
    if (cell.seconds)
      lines.push(
        `${cell.seconds[0].toFixed(2)} s per batch${cell.overhead === null ? "" : `, ${signed(cell.overhead)} % against its baseline`}.`,
      );
    return make("p", {}, lines.join(" "));
  }

  // What had the focus has it again after the section is drawn anew.
  function drawSamples() {
    const held = byId("samples").contains(document.activeElement) ? document.activeElement.id : "";
    fillSamples();
    if (held) (byId(held)?.disabled === false ? byId(held) : byId("chosen"))?.focus({ preventScroll: true });
  }

  function fillSamples() {
    const place = host("samples"),
      cell = state.cell,
      bench = state.bench;
    if (!cell)
      return place.replaceChildren(words(bench.shown ? "Pick a cell of the table or a point of a chart." : bench.rule));
    const parts = [
      make("h3", { id: "chosen", tabIndex: -1 }, cell.label),
      summary(cell),
      make("p", { class: "hint" }, bench.rule),
    ];
    if (!bench.shown) return place.replaceChildren(...parts);
    const count = Math.ceil(bench.shown / data.page);
    const turn = (page) => {
      state.page = page;
      state.problem = null;
      drawSamples();
    };
    const jump = make(
      "select",
      { id: "problem", on: { change: (event) => choose(cell, Number(event.target.value)) } },
      ...options(
        bench.problems.map((id, i) => [i, id]),
        state.problem ?? state.page * data.page,
      ),
    );
    const other = cell.baseline
      ? make(
          "button",
          {
            type: "button",
            id: "baseline",
            on: { click: () => choose(cellOf(cell.baseline), state.problem ?? state.page * data.page) },
          },
          "Its baseline",
        )
      : null;
    parts.push(
      make(
        "div",
        { class: "pager" },
        make(
          "button",
          { type: "button", id: "back", disabled: state.page === 0, on: { click: () => turn(state.page - 1) } },
          "Back",
        ),
        make("span", {}, `Page ${state.page + 1} of ${count}`),
        make(
          "button",
          { type: "button", id: "next", disabled: state.page + 1 >= count, on: { click: () => turn(state.page + 1) } },
          "Next",
        ),
        make("label", {}, "Problem ", jump),
        other,
      ),
    );
    const found = pages.get(`${cell.key}/${state.page}`);
    parts.push(...(found ? found.map((row, i) => problem(row, cell, state.page * data.page + i)) : [words("Loading ...")]));
    place.replaceChildren(...parts);
    if (!found) load(cell, state.page);
  }

  function problem(row, cell, index) {
    const right = row.samples.filter(([, correct]) => correct).length;
    const times = new Map();
    for (const [text, correct] of row.samples) {
      const key = `${correct} ${text}`;
      times.set(key, { text, correct, count: (times.get(key)?.count || 0) + 1 });
    }
    const texts = [...times.values()]
      .sort((a, b) => Number(b.correct) - Number(a.correct))
      .map(({ text, correct, count }) =>
        make(
          "li",
          { class: correct ? "right" : "wrong" },
          make("span", { class: "mark" }, `${correct ? "✓ right" : "✗ wrong"}${count > 1 ? ` ×${count}` : ""}`),
          make("pre", {}, text || "(empty)"),
        ),
      );
    const open = index === (state.problem ?? state.page * data.page);
    return make(
      "details",
      { class: "problem", open },
      make(
        "summary",
        {},
        make("b", {}, row.problem),
        " ",
        make(
          "span",
          {},
          `${right} of ${row.samples.length} right, ${times.size} different; all runs: ${cell.right[index]} of ${cell.tried} right`,
        ),
      ),
      make("pre", { class: "prompt" }, row.prompt),
      make("ol", { class: "texts" }, ...texts),
    );
  }

  function load(cell, page) {
    const name = `samples/${cell.key}/${page}.js`;
    const script = make("script", {
      src: name,
      on: {
        load: () => script.remove(),
        error: () => {
          script.remove();
          if (state.cell === cell && state.page === page)
            host("samples").lastChild.replaceWith(
              words(`${name} is not beside this page: keep the folder of the report together.`),
            );
        },
      },
    });
    document.head.append(script);
  }
  window.showSamples = ({ cell, page, rows }) => {
    pages.set(`${cell}/${page}`, rows);
    if (state.cell?.key === cell && state.page === page) drawSamples();
  };

  return { choose, draw: drawSamples };
})();
