"use strict";
// What all parts of the page share: the data, what is chosen, and how to make elements. Texts go in as text and nowhere else.
const Page = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const state = { bench: data.benchmarks[0], hidden: {}, k: 0, measure: "", axis: "", cell: null, page: 0, problem: null };

  const byId = (id) => document.getElementById(id);
  const host = (id) => byId(id).querySelector(".host");
  const unique = (values) => [...new Set(values)];
  const sorted = (values) => unique(values).sort((a, b) => a - b);
  const percent = (share) => (100 * share).toFixed(1); // ties away from zero, as text.py has them
  const signed = (share) => (share < 0 ? "" : "+") + percent(share);

  const numberOf = (count, one) => `${count} ${one}${count === 1 ? "" : "s"}`;

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
  const options = (pairs, chosen) =>
    pairs.map(([value, name]) => make("option", { value: String(value), selected: value === chosen }, name));

  const methods = () => unique(state.bench.cells.map((cell) => cell.method));
  const alphas = () => sorted(state.bench.cells.filter((cell) => !cell.plain).map((cell) => cell.alpha));
  const temperatures = () => sorted(state.bench.cells.map((cell) => cell.temperature));
  const cellOf = (key) => state.bench.cells.find((cell) => cell.key === key);
  const main = (cells) => cells.filter((cell) => cell.n === state.bench.n);

  function shown() {
    const { method, temperature, alpha } = state.hidden;
    return state.bench.cells.filter(
      (cell) => !method.has(cell.method) && !temperature.has(cell.temperature) && (cell.plain || !alpha.has(cell.alpha)),
    );
  }

  const told = (cell, k) =>
    `Pass@${k} ${percent(cell.passed[k][0])} %${cell.passed[k][2] === null ? "" : ` [${percent(cell.passed[k][2])}, ${percent(cell.passed[k][3])}]`}`;

  return {
    data,
    state,
    byId,
    host,
    unique,
    sorted,
    percent,
    signed,
    numberOf,
    make,
    words,
    options,
    methods,
    alphas,
    temperatures,
    cellOf,
    main,
    shown,
    told,
  };
})();
