/* Search from disk: browsers start no worker on a file:// page, so its script runs in a hidden frame. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => {
        const message = new MessageEvent("message", { data });
        this.dispatchEvent(message);
        this.onmessage?.(message);
      };
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      };
      inside.document.body.append(script);
    }

    postMessage(data) {
      if (this.ready) {
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
      } else {
        this.waiting.push(data);
      }
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
