// A button with a note that explains it: shown on pointing, on focus and on a tap, and always there for screen readers.
// Nothing else happens when it is pressed.
"use strict";

(function (P) {
  // The note on show: {button, note, endWatch}.
  let shown = null;
  let notes = 0;

  function hide() {
    if (!shown) return;
    shown.endWatch();
    shown.note.hidden = true;
    shown = null;
  }

  function show(button, note) {
    if (shown?.note === note) return;
    hide();
    note.hidden = false;
    P.placePopup(button, note, 0);
    shown = { button, note, endWatch: P.watchPopup(button, hide, "note") };
  }

  // `note` stands beside the button; its padding joins them, so that a mouse can go from one to the other.
  P.explain = function (button, note) {
    note.id = `pt-note-${++notes}`;
    note.hidden = true;
    note.classList.add("pt-explanation");
    note.setAttribute("role", "tooltip");
    button.setAttribute("aria-describedby", note.id);
    const isInside = (node) => button.contains(node) || note.contains(node);
    const leave = ({ relatedTarget }) => isInside(relatedTarget) || document.activeElement === button || hide();
    // A button that moves under a mouse at rest is not pointed at.
    const point = ({ pointerType, movementX, movementY }) => pointerType === "mouse" && (movementX || movementY) && show(button, note);
    button.addEventListener("pointermove", point);
    for (const type of ["focus", "click"]) button.addEventListener(type, () => show(button, note));
    button.addEventListener("blur", hide);
    for (const node of [button, note]) node.addEventListener("pointerleave", leave);
  };

  document.addEventListener("pointerdown", ({ target }) => shown && !shown.button.contains(target) && !shown.note.contains(target) && hide());
  document.addEventListener("scroll", () => shown && P.placePopup(shown.button, shown.note, 0), { capture: true, passive: true });
})(window.Pageturn);
