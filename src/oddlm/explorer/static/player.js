// Steps: play, pause, scrub; by keys, too.
"use strict";

oddlm.Player = class {
  static PAUSE_MS = 350;
  static SHAPES = { Play: "M3 1l11 7-11 7z", Pause: "M3 1h3.5v14h-3.5zM9.5 1h3.5v14h-3.5z" }; // not every font has them

  constructor(moved) {
    const { byId } = oddlm;
    this.moved = moved;
    this.slider = byId("scrub");
    this.button = byId("play");
    this.words = byId("step");
    this.total = 1;
    this.steps = 0;
    this.timer = null;
    this.slider.addEventListener("input", () => { this.pause(); this.go(Number(this.slider.value)); });
    this.button.addEventListener("click", () => this.toggle());
    document.addEventListener("keydown", (event) => this.key(event));
    this.label("Play");
  }

  label(name) {
    const { svg } = oddlm;
    this.button.setAttribute("aria-label", name);
    this.button.replaceChildren(svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: oddlm.Player.SHAPES[name] })));
  }

  // So many steps there are; the picture stays where it is, or goes to the end.
  extend(total, steps = this.steps) {
    this.total = total;
    this.slider.max = total;
    this.go(steps);
  }

  go(steps) {
    this.steps = Math.max(0, Math.min(this.total, Math.round(steps)));
    this.slider.value = this.steps;
    const words = this.steps ? `step ${this.steps} of ${this.total}` : "all masked";
    this.words.textContent = words;
    this.slider.setAttribute("aria-valuetext", words);
    this.moved(this.steps);
  }

  toggle() { if (this.timer) this.pause(); else this.play(); }

  play() {
    this.pause();
    if (this.steps >= this.total) this.go(0);
    this.timer = setInterval(() => {
      this.go(this.steps + 1);
      if (this.steps >= this.total) this.pause();
    }, oddlm.Player.PAUSE_MS);
    this.label("Pause");
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.label("Play");
  }

  key(event) {
    const busy = event.target.closest("input, select, textarea, button, a, summary, canvas");
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || busy) return;
    if (event.key === " ") this.toggle();
    else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      this.pause();
      this.go(this.steps + (event.key === "ArrowRight" ? 1 : -1));
    } else return;
    event.preventDefault();
  }
};
