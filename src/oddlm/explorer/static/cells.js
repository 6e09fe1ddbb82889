// What the parts of the report share: its data, what is chosen, and the cells that the filters leave.
"use strict";

oddlm.cells = (() => {
  const { byId, el, unique, sorted } = oddlm;
  const data = JSON.parse(byId("data").textContent);
  const state = { bench: data.benchmarks[0], hidden: {}, k: 0, measure: "", axis: "", cell: null, page: 0, problem: null };

  const host = (id) => byId(id).querySelector(".host");
  const words = (text) => el("p", { class: "words" }, text);
  const options = (pairs, chosen) => pairs.map(([value, name]) => el("option", { value, selected: value === chosen }, name));

  const methods = () => unique(state.bench.cells.map((cell) => cell.method));
  const alphas = () => sorted(state.bench.cells.filter((cell) => !cell.plain).map((cell) => cell.alpha));
  const temperatures = () => sorted(state.bench.cells.map((cell) => cell.temperature));
  const cellOf = (key) => state.bench.cells.find((cell) => cell.key === key);
  const main = (cells) => cells.filter((cell) => cell.n === state.bench.n);

  function shown() {
    const { method, temperature, alpha } = state.hidden;
    return state.bench.cells.filter((cell) => !method.has(cell.method) && !temperature.has(cell.temperature) && (cell.plain || !alpha.has(cell.alpha)));
  }

  // Pass@k of a cell, in percent: {mean, low, high} to draw and `words` to read.
  function passed(cell, k) {
    const { value: [mean, low, high], text } = cell.passed[k];
    return { mean, low, high, words: `Pass@${k} ${text[0]} %${low === null ? "" : ` [${text[2]}, ${text[3]}]`}` };
  }

  return { data, state, host, words, options, methods, alphas, temperatures, cellOf, main, shown, passed };
})();
