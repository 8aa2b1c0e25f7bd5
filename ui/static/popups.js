// What every popup that belongs to a place of the page has in common: where it stands, and that it goes with Esc, and with
// its anchor: when that has left the page, its tab, or the part of the page that is in sight.
"use strict";

(function (P) {
  const GAP_PX = 8;
  // The `close` of each popup that is open, the newest last, and its kind.
  const open = new Map();

  // Puts a popup of fixed position above its anchor, or below where there is no room.
  P.placePopup = function (anchor, popup, gap) {
    const box = anchor.getBoundingClientRect();
    const room = document.documentElement.clientWidth - popup.offsetWidth - GAP_PX;
    const above = box.top - popup.offsetHeight - gap;
    popup.style.left = `${Math.max(GAP_PX, Math.min(box.left, room))}px`;
    popup.style.top = `${above > GAP_PX ? above : box.bottom + gap}px`;
  };

  // Calls `close` once that is so; returns what ends the watch and is to be called when the popup goes. Esc closes a "note",
  // which comes by itself, and means what it would mean without it.
  P.watchPopup = function (anchor, close, kind = "dialog") {
    const sight = new IntersectionObserver(([{ isIntersecting }]) => isIntersecting || close());
    sight.observe(anchor);
    open.set(close, kind);
    return () => {
      sight.disconnect();
      open.delete(close);
    };
  };

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || !open.size) return;
    const [close, kind] = [...open].at(-1);
    if (kind !== "note") event.preventDefault();
    close();
  });
})(window.Pageturn);
