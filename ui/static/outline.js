// A conversation's tree as rows to show: runs of messages that follow each other, and indented below a message whatever hangs
// under it and has siblings. No elements.
"use strict";

(function (P) {
  const SMALL = 60;

  P.Outline = class {
    constructor({ head_id, nodes }) {
      this.head = head_id;
      this.nodes = new Map(nodes.map((node) => [node.id, node]));
      this.children = new Map();
      for (const node of nodes) {
        if (!this.children.has(node.parent_id)) this.children.set(node.parent_id, []);
        this.children.get(node.parent_id).push(node.id);
      }
      this.sizes = this.countBelow(nodes);
      this.path = new Set();
      for (let id = head_id; id; id = this.nodes.get(id)?.parent_id) this.path.add(id);
    }

    // How many messages a branch has, its first one included.
    countBelow(nodes) {
      const sizes = new Map(nodes.map((node) => [node.id, 1]));
      for (const { id, parent_id } of [...nodes].reverse()) if (parent_id) sizes.set(parent_id, sizes.get(parent_id) + sizes.get(id));
      return sizes;
    }

    below = (id) => this.children.get(id) ?? [];
    startsBranch = (id) => this.below(this.nodes.get(id).parent_id).length > 1;
    // The only one below its parent, whose run it goes on with.
    goesOn = (id) => this.nodes.get(id).parent_id !== null && !this.startsBranch(id);
    // What can be folded: a message that several hang under, and the first one of a run that has more.
    canFold = (id) => this.below(id).length > (this.goesOn(id) ? 1 : 0);

    // Open from the start: everything of a small tree, else what is on show.
    opensByItself = (id) => this.nodes.size <= SMALL || this.path.has(id);

    // Rows from the top: {id, level, folds, open, goesOn, size}; what lies below a folded one is left out. `toggled` are exceptions.
    rows(toggled) {
      const rows = [];
      const pending = this.below(null).map((id) => ({ id, level: 1 })).reverse();
      while (pending.length) {
        const { id, level } = pending.pop();
        const folds = this.canFold(id);
        const open = folds && (toggled.get(id) ?? this.opensByItself(id));
        rows.push({ id, level, folds, open, goesOn: this.goesOn(id), size: this.sizes.get(id) });
        if (folds && !open) continue;
        const inner = folds ? level + 1 : level;
        pending.push(...this.below(id).map((child) => ({ id: child, level: inner })).reverse());
      }
      return rows;
    }
  };
})(window.Pageturn);
