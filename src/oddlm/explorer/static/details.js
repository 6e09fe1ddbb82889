// What is known of one token: shown beside it while the pointer or the focus is on it.
"use strict";

oddlm.details = (() => {
  const { el, byId, visible, percent } = oddlm;
  let owner = null;

  function said(run, spot, step) {
    if (spot.by === "plain") return "Plain sampling would write here at this step; diverse sampling writes elsewhere.";
    if (run.forks(step)) return "The fork starts this sample here; every sample starts at a token or position of its own.";
    const other = spot.token !== spot.plain_token;
    if (spot.by === "pushed") {
      return `Only diverse sampling writes here at this step${other ? ", and it picks another token" : ""}.`;
    }
    return other ? "The push changed this token." : "Both write the same token here.";
  }

  function quoted(run, token) {
    if (run.ends.has(token)) return "∎ end";
    return `“${visible(run.piece(token)).replace(/\n/g, "")}”`;
  }

  function row(run, label, token, before, after, mark) {
    return el("tr", { class: mark }, el("th", { scope: "row" }, label), el("td", { class: "piece" }, quoted(run, token)),
      el("td", {}, percent(before)), el("td", {}, percent(after)));
  }

  function content(run, sample, position, step, spot) {
    const head = ["", "token", "before the push", "after the push"].map((words) => el("th", { scope: "col" }, words));
    const taken = row(run, spot.by === "plain" ? "diverse would write" : "written", spot.token, spot.base_probability, spot.probability, "taken");
    const plain = row(run, "plain would write", spot.plain_token, spot.plain_base_probability, spot.plain_probability, "plainly");
    const top = spot.top.map((one, i) => row(run, `top ${i + 1}`, one.token, one.base_probability, one.probability, "top"));
    return [
      el("p", {}, el("b", {}, said(run, spot, step)), ` Sample ${sample + 1}, position ${position + 1}, step ${step + 1}.`),
      el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, taken, plain, top)),
    ];
  }

  function show(anchor, run, sample, position, step, spot) {
    const box = byId("details");
    hide();
    owner = anchor;
    anchor.setAttribute("aria-describedby", "details");
    box.replaceChildren(...content(run, sample, position, step, spot));
    box.hidden = false;
    const place = anchor.getBoundingClientRect(), size = box.getBoundingClientRect();
    const below = place.bottom + 6 + size.height <= innerHeight || place.top < size.height;
    box.style.left = `${Math.max(8, Math.min(place.left, document.documentElement.clientWidth - size.width - 8))}px`;
    box.style.top = `${Math.max(8, below ? place.bottom + 6 : place.top - size.height - 6)}px`;
  }

  function hide() {
    if (owner) owner.removeAttribute("aria-describedby");
    owner = null;
    byId("details").hidden = true;
  }

  return { show, hide };
})();
