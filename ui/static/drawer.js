// The sidebar as a drawer: where it would cover the chat, as on a phone or in a narrow window, it is there only when wanted.
"use strict";

(function (P) {
  const narrow = matchMedia("(max-width: 768px)");
  let closedByWidth = false;

  const toggle = (state) => document.querySelector(`#pt-sidebar${state} .toggle-button`)?.click();
  const isOpen = () => Boolean(document.querySelector("#pt-sidebar.open"));

  // Once something is chosen in it, what was chosen is to be seen.
  function leave() {
    if (narrow.matches) toggle(".open");
  }

  narrow.addEventListener("change", () => {
    if (narrow.matches) {
      closedByWidth = isOpen();
      toggle(".open");
    } else if (closedByWidth) toggle(":not(.open)");
  });

  P.drawer = { leave, show: () => toggle(":not(.open)") };
})(window.Pageturn);
