// The sidebar as a drawer: where it would cover the chat, as on a phone, it is there only when wanted, and in a narrow window
// it makes room for what is opened beside the chat.
"use strict";

(function (P) {
  const narrow = matchMedia("(max-width: 768px)");
  const tight = matchMedia("(max-width: 1100px)");
  let closedByWidth = false;
  let gaveWay = false;

  const toggle = (state) => document.querySelector(`#pt-sidebar${state} .toggle-button`)?.click();
  const isOpen = () => Boolean(document.querySelector("#pt-sidebar.open"));

  // Once something is chosen in it, what was chosen is to be seen.
  function leave() {
    if (narrow.matches) toggle(".open");
  }

  // To what is opened beside the chat, where there is no room for both.
  function giveWay() {
    gaveWay = tight.matches && !narrow.matches && isOpen();
    if (gaveWay) toggle(".open");
  }

  function comeBack() {
    if (gaveWay && !narrow.matches) toggle(":not(.open)");
    gaveWay = false;
  }

  tight.addEventListener("change", () => tight.matches || comeBack());
  narrow.addEventListener("change", () => {
    if (narrow.matches) {
      closedByWidth = isOpen();
      toggle(".open");
    } else if (closedByWidth) toggle(":not(.open)");
  });

  P.drawer = { leave, giveWay, comeBack, show: () => toggle(":not(.open)") };
})(window.Pageturn);
