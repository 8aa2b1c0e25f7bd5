// What every popup that belongs to a place of the page has in common: it goes with Esc, and with its anchor: when that
// has left the page, its tab, or the part of the page that is in sight.
"use strict";

(function (P) {
  // The `close` of each popup that is open, the newest last.
  const open = new Set();

  // Calls `close` once that is so; returns what ends the watch and is to be called when the popup goes.
  P.watchPopup = function (anchor, close) {
    const sight = new IntersectionObserver(([{ isIntersecting }]) => isIntersecting || close());
    sight.observe(anchor);
    open.add(close);
    return () => {
      sight.disconnect();
      open.delete(close);
    };
  };

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || !open.size) return;
    event.preventDefault();
    [...open].at(-1)();
  });
})(window.Pageturn);
