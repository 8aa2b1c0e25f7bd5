// Modal dialogs. Esc and a press beside one close it and do nothing else.
"use strict";

(function (P) {
  const { h } = P;
  let dialogs = 0;

  // A modal dialog with a title and a button to close it; gone for good when it closes.
  P.openDialog = function (title, ...children) {
    const id = `pt-dialog-${++dialogs}`;
    const close = P.iconButton("close", "Close", () => dialog.close());
    const head = h("header", {}, h("h2", { id }, title), close);
    const body = h("div", { class: "pt-dialog-body" }, ...children);
    // What has nothing to tab to is scrolled by key itself.
    if (!body.querySelector("button, input, [tabindex]")) body.tabIndex = 0;
    const dialog = h("dialog", { class: "pt-dialog", "aria-labelledby": id }, h("div", { class: "pt-dialog-frame" }, head, body));
    dialog.addEventListener("close", () => dialog.remove());
    dialog.addEventListener("pointerdown", (event) => event.target === dialog && dialog.close());
    document.body.append(dialog);
    dialog.showModal();
    return dialog;
  };

  P.isDialogOpen = () => document.querySelector("dialog[open]") !== null;
})(window.Pageturn);
