// Search from the disk: a page of file:// may start no Worker, so that the search runs in a hidden frame there.
// mkdocs-material asks for `IFrameWorker` by this name.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      addEventListener("message", (event) => {
        if (event.source !== inside) return;
        this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        this.onmessage?.(event);
      });
      inside.document.open();
      inside.document.write(
        "<script>postMessage = (data) => parent.dispatchEvent(" +
          "new MessageEvent('message', { data, source: window }))</script>" +
          `<script src="${new URL(url, location)}"></script>`,
      );
      inside.document.close();
      this.loaded = new Promise((resolve) => (inside.onload = resolve));
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.loaded.then(() => inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
