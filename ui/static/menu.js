// A menu that opens at a button: arrows, Home and End move, Enter chooses; Esc, a press elsewhere and scrolling close it.
"use strict";

(function (P) {
  const { h } = P;
  const GAP_PX = 6;
  let menu = null;
  let opener = null;
  let endWatch = null;

  function closeMenu(returnFocus) {
    if (!menu) return;
    const anchor = opener;
    endWatch();
    menu.remove();
    [menu, opener] = [null, null];
    anchor.setAttribute("aria-expanded", "false");
    if (returnFocus) anchor.focus();
  }

  function onMenuKey(event) {
    const entries = [...menu.children];
    const at = entries.indexOf(document.activeElement);
    const target = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
    if (event.key === "Tab") closeMenu(false);
    if (event.key === "Escape") closeMenu(true);
    if (target !== undefined) entries.at(target % entries.length).focus();
    if (target === undefined && event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
  }

  function entryOf({ icon, label, note, checked, onclick }) {
    const role = checked === undefined ? "menuitem" : "menuitemradio";
    const choose = () => (closeMenu(true), onclick());
    return h("button", { type: "button", role, class: "pt-menu-item", tabindex: -1, "aria-checked": checked === undefined ? null : String(checked), onclick: choose }, icon ? P.icon(icon) : null, h("span", {}, label, note ? h("small", {}, note) : null));
  }

  function place(anchor) {
    const box = anchor.getBoundingClientRect();
    const left = Math.min(box.left, document.documentElement.clientWidth - menu.offsetWidth - GAP_PX);
    const below = box.bottom + GAP_PX;
    const fits = below + menu.offsetHeight < innerHeight;
    menu.style.left = `${Math.max(GAP_PX, left)}px`;
    menu.style.top = `${fits ? below : Math.max(GAP_PX, box.top - menu.offsetHeight - GAP_PX)}px`;
  }

  // `items`: {label, onclick, note?, icon?, checked?}, where `checked` makes it a choice among others; null ones are left out.
  P.openMenu = function (anchor, label, items) {
    const again = opener === anchor;
    closeMenu(false);
    if (again) return;
    opener = anchor;
    menu = h("div", { class: "pt-menu", role: "menu", "aria-label": label }, ...items.filter(Boolean).map(entryOf));
    menu.addEventListener("keydown", onMenuKey);
    document.body.append(menu);
    place(anchor);
    endWatch = P.watchPopup(anchor, () => closeMenu(true));
    anchor.setAttribute("aria-expanded", "true");
    (menu.querySelector('[aria-checked="true"]') ?? menu.firstChild).focus();
  };

  // A button that opens a menu; `items` is asked for at that moment.
  P.menuButton = function (icon, label, items, props) {
    const button = P.iconButton(icon, label, () => P.openMenu(button, label, items()), { "aria-haspopup": "menu", "aria-expanded": "false", ...props });
    return button;
  };

  document.addEventListener("pointerdown", (event) => {
    if (menu && !menu.contains(event.target) && !opener.contains(event.target)) closeMenu(false);
  });
  window.addEventListener("resize", () => closeMenu(false));
  document.addEventListener("scroll", () => closeMenu(false), { capture: true, passive: true });
})(window.Pageturn);
