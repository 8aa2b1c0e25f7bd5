// A menu that opens at a button: arrows, Home and End move, Enter chooses, Esc and a press elsewhere close it.
"use strict";

(function (P) {
  const { h } = P;
  const GAP_PX = 4;
  let menu = null;
  let opener = null;

  function close() {
    if (!menu) return;
    const hadFocus = menu.contains(document.activeElement);
    menu.remove();
    opener.setAttribute("aria-expanded", "false");
    if (hadFocus) opener.focus();
    menu = opener = null;
  }

  function place(box) {
    const { offsetWidth: width, offsetHeight: height } = menu;
    const below = box.bottom + GAP_PX + height <= innerHeight;
    menu.style.left = `${Math.max(8, Math.min(box.right - width, innerWidth - width - 8))}px`;
    menu.style.top = `${Math.max(8, below ? box.bottom + GAP_PX : box.top - GAP_PX - height)}px`;
  }

  function onKey(event) {
    const entries = [...menu.children];
    const at = entries.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
    if (next !== undefined) entries.at(next % entries.length).focus();
    else if (event.key === "Escape" || event.key === "Tab") close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // `entries`: [{icon, text, onclick}]; those that are null are left out.
  function open(button, label, entries) {
    const same = opener === button;
    close();
    if (same) return;
    const choose = (onclick) => () => (close(), onclick());
    const nodes = entries
      .filter(Boolean)
      .map(({ icon, text, onclick }) => h("button", { type: "button", role: "menuitem", tabindex: -1, onclick: choose(onclick) }, P.icon(icon), h("span", {}, text)));
    opener = button;
    menu = h("div", { class: "pt-menu", role: "menu", "aria-label": label }, ...nodes);
    menu.addEventListener("keydown", onKey);
    document.body.append(menu);
    button.setAttribute("aria-expanded", "true");
    place(button.getBoundingClientRect());
    nodes[0].focus();
  }

  function button(label, entries, props) {
    const node = P.iconButton("more", label, () => open(node, label, entries()), { "aria-haspopup": "menu", "aria-expanded": "false", ...props });
    return node;
  }

  document.addEventListener("pointerdown", (event) => menu && !menu.contains(event.target) && !opener.contains(event.target) && close());
  window.addEventListener("resize", close);

  P.menu = { button, close };
})(window.Pageturn);
