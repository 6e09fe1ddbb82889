"use strict";
// Texts of runs are a model's: they go in as text nodes and nowhere else.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const state = { bench: data.benchmarks[0], hidden: {}, k: 0, measure: "", axis: "", cell: null, page: 0, problem: null };
  const pages = new Map();
  const AXES = { method: "Method", temperature: "Temperature", alpha: "Alpha" };
  const OVER = { steps: "steps", n: "samples n", length: "tokens S", alpha: "alpha", temperature: "temperature" };

  const byId = (id) => document.getElementById(id);
  const host = (id) => byId(id).querySelector(".host");
  const unique = (values) => [...new Set(values)];
  const sorted = (values) => unique(values).sort((a, b) => a - b);
  const percent = (share) => (100 * share).toFixed(1);
  const signed = (share) => (share > 0 ? "+" : "") + percent(share);
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

  function make(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
      else if (name in node && typeof value !== "string") node[name] = value;
      else node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }
  const words = (text) => make("p", { class: "words" }, text);
  const options = (pairs, chosen) => pairs.map(([value, name]) => make("option", { value: String(value), selected: value === chosen }, name));

  const methods = () => unique(state.bench.cells.map((cell) => cell.method));
  // Bare objectives get the first colours, then methods with other settings, then explorers that push nothing.
  function methodSlot(method) {
    const rank = (cell) => (cell.plain ? 2 : cell.method === cell.objective ? 0 : 1);
    return unique([...state.bench.cells].sort((a, b) => rank(a) - rank(b)).map((cell) => cell.method)).filter((name) => name !== "plain").indexOf(method);
  }
  const alphas = () => sorted(state.bench.cells.filter((cell) => !cell.plain).map((cell) => cell.alpha));
  const temperatures = () => sorted(state.bench.cells.map((cell) => cell.temperature));
  const cellOf = (key) => state.bench.cells.find((cell) => cell.key === key);
  const main = (cells) => cells.filter((cell) => cell.n === state.bench.n);

  function shown() {
    const { method, temperature, alpha } = state.hidden;
    return state.bench.cells.filter((cell) => !method.has(cell.method) && !temperature.has(cell.temperature) && (cell.plain || !alpha.has(cell.alpha)));
  }

  function chooseBenchmark(index) {
    state.bench = data.benchmarks[index];
    const bench = state.bench;
    state.hidden = { method: new Set(), temperature: new Set(), alpha: new Set() };
    state.k = bench.n;
    state.measure = bench.measures.length ? bench.measures[0][0] : "";
    const timed = bench.cells.filter((cell) => cell.overhead !== null);
    const axes = Object.keys(OVER).filter((axis) => unique(timed.map((cell) => cell[axis]).filter((value) => value !== undefined)).length > 1);
    state.axis = axes[0] || "alpha";
    state.cell = null;
    const runs = bench.cells.reduce((sum, cell) => sum + cell.runs, 0);
    byId("about").textContent = `${bench.model}, ${bench.count} problems, ${bench.cells.length} settings, ${runs} runs${bench.common ? "; " + bench.common : ""}.`;
    byId("notes").hidden = bench.notes.length === 0;
    byId("notes").querySelector("ul").replaceChildren(...bench.notes.map((note) => make("li", {}, note)));
    const ks = sorted(bench.cells.flatMap((cell) => Object.keys(cell.passed).map(Number))).filter((k) => k <= bench.n);
    byId("k").replaceChildren(...options(ks.map((k) => [k, String(k)]), state.k));
    byId("measure").replaceChildren(...options(bench.measures, state.measure));
    byId("axis").replaceChildren(...options((axes.length ? axes : ["alpha"]).map((axis) => [axis, OVER[axis]]), state.axis));
    drawFilters();
    drawClaims();
    drawSamples();
    redraw();
  }

  function drawFilters() {
    const values = { method: methods(), temperature: temperatures(), alpha: alphas() };
    byId("filters").replaceChildren(...Object.entries(values).filter(([, found]) => found.length).map(([axis, found]) => {
      const boxes = found.map((value) => make("input", { type: "checkbox", checked: true, name: axis, value: String(value), on: { change: (event) => {
        state.hidden[axis][event.target.checked ? "delete" : "add"](value);
        redraw();
      } } }));
      const all = make("button", { type: "button", on: { click: () => {
        const none = state.hidden[axis].size === 0;
        state.hidden[axis] = new Set(none ? found : []);
        for (const box of boxes) box.checked = !none;
        redraw();
      } } }, "all / none");
      return make("fieldset", { id: `filter-${axis}` }, make("legend", {}, AXES[axis]), ...boxes.map((box, i) => make("label", {}, box, ` ${found[i]}`)), found.length > 2 ? all : null);
    }));
  }

  function redraw() {
    for (const draw of [drawTable, drawCurves, drawPareto, drawDiversity, drawOverhead]) draw(shown());
  }

  function drawTable(cells) {
    const k = state.k, some = main(cells).filter((cell) => cell.passed[k]);
    const place = host("table");
    if (!some.length) return place.replaceChildren(words(cells.length ? `Pass@${k} cannot be had from these runs.` : "The filters leave no cell."));
    const heat = some.map((cell) => cell.passed[k][0]), low = Math.min(...heat), high = Math.max(...heat);
    const across = sorted(some.map((cell) => cell.temperature));
    const best = new Map(across.map((t) => [t, Math.max(...some.filter((cell) => cell.temperature === t).map((cell) => cell.passed[k][0]))]));
    const rows = [];
    for (const method of unique(some.map((cell) => cell.method))) {
      const own = some.filter((cell) => cell.method === method);
      rows.push(make("tr", { class: "method" }, make("th", { scope: "rowgroup", colSpan: across.length + 1 }, method)));
      for (const alpha of sorted(own.map((cell) => cell.alpha))) {
        const line = across.map((t) => own.find((cell) => cell.alpha === alpha && cell.temperature === t));
        rows.push(make("tr", {}, make("th", { scope: "row" }, own[0].plain ? "" : `α = ${alpha}`), ...line.map((cell) => make("td", {}, cell ? tableCell(cell, k, best, low, high) : "–"))));
      }
    }
    const head = make("tr", {}, make("td", {}), ...across.map((t) => make("th", { scope: "col" }, `θ = ${t}`)));
    place.replaceChildren(make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": `Pass@${k} by setting` }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))));
  }

  function tableCell(cell, k, best, low, high) {
    const [value, se, from, to] = cell.passed[k];
    const top = value === best.get(cell.temperature);
    const button = make("button", { type: "button", "data-cell": cell.key, "aria-pressed": String(state.cell === cell), on: { click: () => choose(cell) } },
      make("span", { class: top ? "best" : "" }, percent(value)), se === null ? null : ` ± ${percent(se)}`,
      from === null ? null : make("small", {}, `${percent(from)} – ${percent(to)}`));
    button.style.setProperty("--warm", String(high > low ? Math.round((70 * (value - low)) / (high - low)) : 20));
    return button;
  }

  const width = (place, most) => Math.max(280, Math.min(most, place.clientWidth || most));
  function panelWidth(place) {
    const whole = place.clientWidth || 900, columns = Math.max(1, Math.floor((whole + 14) / 314));
    return Math.max(260, Math.floor((whole - 14 * (columns - 1)) / columns));
  }
  const told = (cell, k) => `Pass@${k} ${percent(cell.passed[k][0])} %${cell.passed[k][2] === null ? "" : ` [${percent(cell.passed[k][2])}, ${percent(cell.passed[k][3])}]`}`;
  const pickCell = (point) => choose(point.cell);

  // One colour per method where several push, else one per alpha; plain sampling in ink.
  function colouring(cells) {
    const pushing = unique(cells.filter((cell) => !cell.plain).map((cell) => cell.method));
    const several = pushing.length > 1 || cells.some((cell) => cell.plain && cell.method !== "plain");
    const slot = (cell) => (several ? methodSlot(cell.method) : cell.plain ? -1 : alphas().indexOf(cell.alpha));
    const name = (cell) => (several || cell.plain ? cell.method : `${cell.method} α ${cell.alpha}`);
    const thick = (cell) => (several && !cell.plain && alphas().length > 1 ? 0.55 + (0.9 * alphas().indexOf(cell.alpha)) / (alphas().length - 1) : 1);
    const hint = several && alphas().length > 1 ? "Thicker: larger alpha." : "";
    return { slot, thick, hint, entries: unique(cells.map(name)).map((label) => { const cell = cells.find((one) => name(one) === label); return { name: label, slot: slot(cell), dashed: cell.plain }; }) };
  }

  function drawCurves(cells) {
    const some = main(cells).filter((cell) => Object.keys(cell.passed).length), place = host("curves");
    if (!some.length) return place.replaceChildren(words(cells.length ? "No Pass@k is known of these runs." : "The filters leave no cell."));
    const ks = (cell) => Object.keys(cell.passed).map(Number).sort((a, b) => a - b);
    const { slot, thick, hint, entries } = colouring(some);
    const y = Charts.range(some.flatMap((cell) => ks(cell).map((k) => 100 * cell.passed[k][0])), 0, 100);
    const n = state.bench.n, marked = unique([1, ...[1, 2, 3].map((i) => Math.round((i * n) / 4)), n]).filter((k) => k > 0).map((k) => [k, String(k)]);
    const panels = make("div", { class: "panels" });
    for (const t of sorted(some.map((cell) => cell.temperature))) {
      const lines = some.filter((cell) => cell.temperature === t).sort((a, b) => a.plain - b.plain).map((cell) => ({ name: cell.label, slot: slot(cell), thick: thick(cell), dashed: cell.plain,
        points: ks(cell).map((k) => ({ x: k, y: 100 * cell.passed[k][0], words: told(cell, k), cell })) }));
      panels.append(Charts.chart({ width: panelWidth(place), height: 230, labels: { title: `θ = ${t}`, x: "k" }, lines, marked, y, pick: pickCell }));
    }
    place.replaceChildren(Charts.legend(entries, hint), panels);
  }

  function drawPareto(cells) {
    const n = state.bench.n, some = main(cells).filter((cell) => cell.passed[1] && cell.passed[n]), place = host("pareto");
    if (!cells.length) return place.replaceChildren(words("The filters leave no cell."));
    if (!some.length || n === 1) return place.replaceChildren(words(`Pass@1 (the share of right samples) beside Pass@${n} cannot be had from these runs.`));
    const { slot, thick, hint, entries } = colouring(some);
    const lines = unique(some.map((cell) => `${cell.method}\n${cell.alpha}`)).map((key) => {
      const own = some.filter((cell) => `${cell.method}\n${cell.alpha}` === key).sort((a, b) => a.temperature - b.temperature);
      const points = own.map((cell) => ({ x: 100 * cell.passed[1][0], y: 100 * cell.passed[n][0], low: bound(cell.passed[n][2]), high: bound(cell.passed[n][3]), cell,
        words: `θ = ${cell.temperature}: Pass@1 ${percent(cell.passed[1][0])} %, ${told(cell, n)}` }));
      return { name: own[0].plain ? own[0].method : `${own[0].method} α ${own[0].alpha}`, slot: slot(own[0]), thick: thick(own[0]), dashed: own[0].plain, marks: true, points };
    });
    const x = Charts.range(some.map((cell) => 100 * cell.passed[1][0]), 0, 100);
    const y = Charts.range(some.flatMap((cell) => [cell.passed[n][0], cell.passed[n][2], cell.passed[n][3]]).filter((one) => one !== null).map((one) => 100 * one), 0, 100);
    const chart = Charts.chart({ width: width(place, 900), height: 400, x, y, labels: { title: `Pass@${n} (%)`, x: "Pass@1: right samples (%)" }, lines, pick: pickCell });
    place.replaceChildren(Charts.legend(entries.map((entry) => ({ ...entry, marks: true })), hint), chart);
  }
  const bound = (share) => (share === null ? null : 100 * share);

  function drawDiversity(cells) {
    const name = state.measure, place = host("diversity"), about = state.bench.measures.find(([one]) => one === name);
    byId("meaning").textContent = about ? about[2] + "." : "";
    byId("measure").parentElement.hidden = !about;
    const some = main(cells).filter((cell) => !cell.plain && cell.diversity[name]);
    if (!about) return place.replaceChildren(words("No measure of diversity is known of these runs."));
    if (!some.length) return place.replaceChildren(words("The runs shown have no method that pushes samples apart, or this measure is not known of them."));
    const ranks = alphas(), marked = ranks.map((alpha, i) => [i, String(alpha)]);
    const base = (cell) => cellOf(cell.baseline)?.diversity[name]?.[0];
    const y = Charts.range(some.flatMap((cell) => [...cell.diversity[name].slice(0, 1), base(cell)]).filter((value) => value !== undefined), 0);
    const panels = make("div", { class: "panels" }), met = new Set();
    for (const method of unique(some.map((cell) => cell.method))) {
      const lines = sorted(some.filter((cell) => cell.method === method).map((cell) => cell.temperature)).flatMap((t) => {
        met.add(t);
        const own = some.filter((cell) => cell.method === method && cell.temperature === t).sort((a, b) => a.alpha - b.alpha), slot = temperatures().indexOf(t);
        const points = own.map((cell) => ({ x: ranks.indexOf(cell.alpha), y: cell.diversity[name][0], words: `α = ${cell.alpha}: ${cell.diversity[name][0].toFixed(3)}`, cell }));
        const level = base(own[0]), plain = cellOf(own[0].baseline);
        const flat = level === undefined ? [] : [{ name: `θ = ${t}, ${plain.method}`, slot, dashed: true, points: [0, ranks.length - 1].map((x) => ({ x, y: level, words: level.toFixed(3), cell: plain })) }];
        return [...flat, { name: `θ = ${t}`, slot, marks: true, points }];
      });
      panels.append(Charts.chart({ width: panelWidth(place), height: 260, labels: { title: method, x: "alpha" }, lines, marked, y, pick: pickCell }));
    }
    const entries = sorted(met).map((t) => ({ name: `θ = ${t}`, slot: temperatures().indexOf(t), marks: true }));
    place.replaceChildren(Charts.legend(entries), panels);
  }

  function drawOverhead(cells) {
    const axis = state.axis, place = host("overhead");
    const some = cells.filter((cell) => cell.overhead !== null && !cell.plain && cell[axis] !== undefined);
    byId("axis").parentElement.hidden = !some.length;
    if (!some.length) return place.replaceChildren(words(cells.length ? "Overhead cannot be had: it takes timed runs of a method and of plain sampling that are otherwise alike." : "The filters leave no cell."));
    const values = sorted(some.map((cell) => cell[axis])), order = unique(state.bench.cells.filter((cell) => !cell.plain).map((cell) => cell.objective));
    const lines = unique(some.map((cell) => cell.objective)).map((objective) => {
      const own = some.filter((cell) => cell.objective === objective);
      const points = values.map((value) => [value, own.filter((cell) => cell[axis] === value)]).filter(([, found]) => found.length).map(([value, found]) => {
        const share = mean(found.map((cell) => cell.overhead));
        return { x: values.indexOf(value), y: 100 * share, words: `${OVER[axis]} ${value}: ${signed(share)} %, mean of ${found.length} cells`, cell: found[0] };
      });
      return { name: objective, slot: order.indexOf(objective), marks: true, points };
    });
    const y = Charts.range([0, ...lines.flatMap((line) => line.points.map((point) => point.y))]);
    const chart = Charts.chart({ width: width(place, 640), height: 300, labels: { title: "overhead (%)", x: OVER[axis] }, lines, marked: values.map((value, i) => [i, String(value)]), y, pick: pickCell });
    place.replaceChildren(Charts.legend(lines), chart);
  }

  function drawClaims() {
    const signs = { holds: "✓", fails: "✗", open: "?", "cannot be said": "–" };
    const found = data.claims.filter((one) => one.benchmark === state.bench.name);
    host("claims").replaceChildren(...found.map((one) => make("div", { class: `claim ${one.verdict in signs ? one.verdict.replaceAll(" ", "-") : ""}` },
      make("h3", {}, one.claim), make("p", {}, make("span", { class: "verdict" }, `${signs[one.verdict] || ""} ${one.verdict}. `), one.evidence))));
    byId("leftout").hidden = !data.left_out.length;
    host("leftout").replaceChildren(...data.left_out.map((one) => make("li", {}, `${one.run}: ${one.why}`)));
  }

  function choose(cell, problem = null) {
    state.cell = cell;
    state.page = problem === null ? 0 : Math.floor(problem / data.page);
    state.problem = problem;
    for (const button of document.querySelectorAll("button[data-cell]")) button.setAttribute("aria-pressed", String(button.dataset.cell === cell.key));
    const inside = byId("samples").contains(document.activeElement);
    drawSamples();
    if (inside) return;
    byId("samples").scrollIntoView({ block: "start" });
    byId("chosen").focus({ preventScroll: true });
  }

  function summary(cell) {
    const n = String(cell.n), gain = cell.gains[n], paper = cell.published, lines = [];
    if (cell.passed[n]) lines.push(`${told(cell, n)}; ${cell.runs} ${cell.runs === 1 ? "run" : "runs"}${cell.seeds.length ? `, seeds ${cell.seeds.join(", ")}` : ""}.`);
    if (gain) lines.push(`Over ${cellOf(cell.baseline).label}: ${signed(gain[0])} points${gain[1] === null ? "" : ` [${signed(gain[1])}, ${signed(gain[2])}], interval over ${gain[3]}`}.`);
    if (paper) lines.push(`Published: ${paper[0].toFixed(1)} ± ${paper[1].toFixed(1)} (${state.bench.whose}).`);
    if (cell.solved !== null) lines.push(`Problems with a right sample in some run: ${cell.solved} of ${state.bench.count}.`);
    if (cell.seconds) lines.push(`${cell.seconds[0].toFixed(2)} s per batch${cell.overhead === null ? "" : `, ${signed(cell.overhead)} % against its baseline`}.`);
    return make("p", {}, lines.join(" "));
  }

  // What had the focus has it again after the section is drawn anew.
  function drawSamples() {
    const held = byId("samples").contains(document.activeElement) ? document.activeElement.id : "";
    fillSamples();
    if (held) (byId(held)?.disabled === false ? byId(held) : byId("chosen"))?.focus({ preventScroll: true });
  }

  function fillSamples() {
    const place = host("samples"), cell = state.cell, bench = state.bench;
    if (!cell) return place.replaceChildren(words(bench.shown ? "Pick a cell of the table or a point of a chart." : bench.rule));
    const parts = [make("h3", { id: "chosen", tabIndex: -1 }, cell.label), summary(cell), make("p", { class: "hint" }, bench.rule)];
    if (!bench.shown) return place.replaceChildren(...parts);
    const count = Math.ceil(bench.shown / data.page);
    const turn = (page) => { state.page = page; state.problem = null; drawSamples(); };
    const jump = make("select", { id: "problem", on: { change: (event) => choose(cell, Number(event.target.value)) } },
      ...options(bench.problems.map((id, i) => [i, id]), state.problem ?? state.page * data.page));
    const other = cell.baseline ? make("button", { type: "button", id: "baseline", on: { click: () => choose(cellOf(cell.baseline), state.problem ?? state.page * data.page) } }, "Its baseline") : null;
    parts.push(make("div", { class: "pager" },
      make("button", { type: "button", id: "back", disabled: state.page === 0, on: { click: () => turn(state.page - 1) } }, "Back"),
      make("span", {}, `Page ${state.page + 1} of ${count}`),
      make("button", { type: "button", id: "next", disabled: state.page + 1 >= count, on: { click: () => turn(state.page + 1) } }, "Next"),
      make("label", {}, "Problem ", jump), other));
    const found = pages.get(`${cell.key}/${state.page}`);
    parts.push(...(found ? found.map((row, i) => problem(row, cell, state.page * data.page + i)) : [words("Loading ...")]));
    place.replaceChildren(...parts);
    if (!found) load(cell, state.page);
  }

  function problem(row, cell, index) {
    const right = row.samples.filter(([, correct]) => correct).length;
    const times = new Map();
    for (const [text, correct] of row.samples) times.set(text, { correct, count: (times.get(text)?.count || 0) + 1 });
    const texts = [...times].sort(([, a], [, b]) => Number(b.correct) - Number(a.correct)).map(([text, { correct, count }]) => make("li", { class: correct ? "right" : "wrong" },
      make("span", { class: "mark" }, `${correct ? "✓ right" : "✗ wrong"}${count > 1 ? ` ×${count}` : ""}`), make("pre", {}, text || "(empty)")));
    const open = index === (state.problem ?? state.page * data.page);
    return make("details", { class: "problem", open }, make("summary", {}, make("b", {}, row.problem), " ",
      make("span", {}, `${right} of ${row.samples.length} right, ${times.size} different; all runs: ${cell.right[index]} of ${cell.tried} right`)),
      make("pre", { class: "prompt" }, row.prompt), make("ol", { class: "texts" }, ...texts));
  }

  function load(cell, page) {
    const name = `samples/${cell.key}/${page}.js`;
    const script = make("script", { src: name, on: {
      load: () => script.remove(),
      error: () => { script.remove(); if (state.cell === cell && state.page === page) host("samples").lastChild.replaceWith(words(`${name} is not beside this page: keep the folder of the report together.`)); },
    } });
    document.head.append(script);
  }
  window.showSamples = ({ cell, page, rows }) => {
    pages.set(`${cell}/${page}`, rows);
    if (state.cell?.key === cell && state.page === page) drawSamples();
  };

  byId("benchmark").replaceChildren(...options(data.benchmarks.map((bench, i) => [i, bench.name]), 0));
  byId("benchmark").addEventListener("change", (event) => chooseBenchmark(Number(event.target.value)));
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("k").addEventListener("change", (event) => { state.k = Number(event.target.value); drawTable(shown()); });
  byId("measure").addEventListener("change", (event) => { state.measure = event.target.value; drawDiversity(shown()); });
  byId("axis").addEventListener("change", (event) => { state.axis = event.target.value; drawOverhead(shown()); });
  let wide = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== wide) { wide = innerWidth; redraw(); } });
  chooseBenchmark(0);
})();
