// The block map: a pixel for each block, drawn enlarged. So a frame costs a few array writes per block, whatever its size on
// the screen; hatching, gaps and flashes are layers over it. Sharp on every pixel ratio, colours from the theme.
"use strict";

(function (P) {
  const STATES = ["free", "cached", "private", "shared"];
  const [FREE, CACHED, PRIVATE, SHARED] = [0, 1, 2, 3];
  const LEAST_CELL = 4;
  const MOST_CELL = 18;
  const MOST_HEIGHT = 320;
  const FLASH_MS = 700;
  const FLASH_STEP_MS = 90;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  const layer = (width = 1, height = 1) => Object.assign(document.createElement("canvas"), { width, height });

  function themeColour(name) {
    const context = layer().getContext("2d");
    context.fillStyle = getComputedStyle(document.body).getPropertyValue(`--pt-${name}`).trim();
    const hex = context.fillStyle;
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  }

  const packed = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

  P.BlockMap = class {
    // `onHover(index, cell)` with a block, or null; `onPick(index, cell)` for a click or Enter.
    constructor(canvas, owners, { onHover, onPick, onView }) {
      Object.assign(this, { canvas, owners, onHover, onPick, onView });
      Object.assign(this, { cells: new Uint16Array(0), flashes: new Map(), selected: null, view: null, perCell: 1, width: 0, columns: 1, rows: 1, size: 1 });
      this.pixels = layer();
      this.hatched = layer();
      canvas.addEventListener("pointermove", (event) => this.point(event));
      canvas.addEventListener("pointerleave", () => this.select(null));
      canvas.addEventListener("click", (event) => this.pick(this.indexAt(event)));
      canvas.addEventListener("keydown", (event) => this.key(event));
      canvas.addEventListener("blur", () => this.select(null));
      new ResizeObserver(() => {
        this.width = canvas.clientWidth;
        this.restyle();
      }).observe(canvas);
    }

    // A frame from the server. What has just been taken flashes once.
    set(cells) {
      const before = this.cells;
      this.cells = cells;
      if (before.length === cells.length && !calm.matches) this.noteNew(before, cells);
      this.draw();
    }

    noteNew(before, cells) {
      const until = performance.now() + FLASH_MS;
      for (let i = 0; i < cells.length; i++) {
        if (cells[i] !== before[i] && cells[i] >> 14 >= PRIVATE && before[i] >> 14 < PRIVATE) this.flashes.set(i, until);
      }
      if (this.flashes.size && !this.flashTimer) this.flashTimer = setTimeout(() => this.flash(), FLASH_STEP_MS);
    }

    flash() {
      this.flashTimer = 0;
      const now = performance.now();
      for (const [index, until] of this.flashes) if (until <= now) this.flashes.delete(index);
      this.compose();
      if (this.flashes.size) this.flashTimer = setTimeout(() => this.flash(), FLASH_STEP_MS);
    }

    // The colours of the theme have changed, or the size.
    restyle() {
      this.theme = null;
      this.draw();
    }

    // The blocks in view: all, or a part of them that one has zoomed into.
    span() {
      return this.view ?? [0, this.cells.length];
    }

    // The pool is filled from its beginning, so that is where there is something to see first.
    zoom(factor) {
      const [first, last] = this.span();
      const count = Math.max(16, Math.min(this.cells.length, Math.round((last - first) / factor)));
      if (this.selected === null && this.view === null) this.look(0, count);
      else this.look((this.selected ?? Math.round((first + last) / 2)) - Math.round(count / 2), count);
    }

    shift(direction) {
      const [first, last] = this.span();
      this.look(first + direction * Math.round((last - first) / 2), last - first);
    }

    look(first, count) {
      const start = Math.max(0, Math.min(first, this.cells.length - count));
      this.view = count >= this.cells.length ? null : [start, start + count];
      this.draw();
    }

    // Cells of 4 to 18 px in at most 320 px of height; where that is too small, a cell stands for several blocks.
    layout() {
      const { width } = this;
      const [first, last] = this.span();
      const most = Math.floor(width / LEAST_CELL) * Math.floor(MOST_HEIGHT / LEAST_CELL);
      this.perCell = Math.max(1, Math.ceil((last - first) / most));
      const count = Math.ceil((last - first) / this.perCell);
      this.size = Math.max(LEAST_CELL, Math.min(MOST_CELL, Math.floor(Math.sqrt((width * MOST_HEIGHT) / count))));
      this.columns = Math.max(1, Math.floor(width / this.size));
      this.rows = Math.ceil(count / this.columns);
      const height = `${this.rows * this.size}px`;
      if (this.canvas.style.height !== height) this.canvas.style.height = height;
    }

    draw() {
      if (!this.width || !this.cells.length) return;
      this.theme ??= { free: packed(themeColour("free")), cached: packed(themeColour("cached")), surface: `rgb(${themeColour("surface").join(" ")})` };
      this.layout();
      this.paint();
      this.compose();
      this.onView({ zoomed: this.view !== null, perCell: this.perCell, span: this.span() });
    }

    // One pixel per cell into `pixels`, and into `hatched` where a block of the cell is shared.
    paint() {
      const { cells, perCell } = this;
      const { image, mask, colours, shared } = this.sheets();
      const table = new Map();
      const [first, last] = this.span();
      if (perCell === 1) {
        for (let i = first; i < last; i++) {
          const cell = cells[i];
          const kind = cell >> 14;
          colours[i - first] = kind >= PRIVATE ? table.get(cell & 0x3fff) ?? this.learnColour(table, cell & 0x3fff) : kind === CACHED ? this.theme.cached : this.theme.free;
          if (kind === SHARED) shared[i - first] = 0xffffffff;
        }
      } else {
        for (let i = first, at = 0; i < last; i += perCell, at++) this.blend(i, Math.min(last, i + perCell), at, colours, shared, table);
      }
      this.pixels.getContext("2d").putImageData(image, 0, 0);
      this.hatched.getContext("2d").putImageData(mask, 0, 0);
    }

    // Empty images of the map's size, used again from frame to frame.
    sheets() {
      const { columns, rows } = this;
      if (this.pixels.width !== columns || this.pixels.height !== rows || !this.images) {
        for (const canvas of [this.pixels, this.hatched]) Object.assign(canvas, { width: columns, height: rows });
        const [image, mask] = [new ImageData(columns, rows), new ImageData(columns, rows)];
        this.images = { image, mask, colours: new Uint32Array(image.data.buffer), shared: new Uint32Array(mask.data.buffer) };
      }
      this.images.colours.fill(0);
      this.images.shared.fill(0);
      return this.images;
    }

    // A cell of several blocks has the mean of their colours, and is hatched if half of them are shared.
    blend(from, to, at, colours, shared, table) {
      let red = 0, green = 0, blue = 0, numShared = 0;
      for (let i = from; i < to; i++) {
        const kind = this.cells[i] >> 14;
        const owner = this.cells[i] & 0x3fff;
        const colour = kind >= PRIVATE ? table.get(owner) ?? this.learnColour(table, owner) : kind === CACHED ? this.theme.cached : this.theme.free;
        red += colour & 255;
        green += (colour >> 8) & 255;
        blue += (colour >> 16) & 255;
        numShared += kind === SHARED;
      }
      const count = to - from;
      colours[at] = packed([red / count, green / count, blue / count]);
      if (2 * numShared > count) shared[at] = 0xffffffff;
    }

    learnColour(table, owner) {
      const colour = packed(this.owners.colour(owner));
      table.set(owner, colour);
      return colour;
    }

    // The layers, enlarged: hatching where the mask is, colours beneath it, flashes, gaps, a frame around the selected cell. All
    // on the canvas itself: drawing one large canvas onto another would cost more than all the rest.
    compose() {
      if (!this.theme) return;
      const { canvas, columns, rows, size } = this;
      const ratio = window.devicePixelRatio || 1;
      const cell = Math.max(1, Math.round(size * ratio));
      const [width, height] = [columns * cell, rows * cell];
      const fullWidth = Math.round(this.width * ratio);
      if (canvas.width !== fullWidth || canvas.height !== height) Object.assign(canvas, { width: fullWidth, height });
      const context = canvas.getContext("2d");
      context.imageSmoothingEnabled = false;
      context.clearRect(0, 0, fullWidth, height);
      context.drawImage(this.hatched, 0, 0, width, height);
      context.globalCompositeOperation = "source-in";
      context.fillStyle = this.hatch(cell);
      context.fillRect(0, 0, fullWidth, height);
      context.globalCompositeOperation = "destination-over";
      context.drawImage(this.pixels, 0, 0, width, height);
      context.globalCompositeOperation = "source-over";
      this.drawFlashes(context, cell);
      context.fillStyle = this.gaps(context, cell);
      context.globalCompositeOperation = "destination-out";
      context.fillRect(0, 0, width, height);
      context.globalCompositeOperation = "source-over";
      this.drawSelection(context, cell);
    }

    hatch(cell) {
      const key = `${cell} ${this.theme.surface}`;
      if (this.hatchKey === key) return this.hatchPattern;
      const tile = layer(cell, cell);
      const context = tile.getContext("2d");
      context.strokeStyle = this.theme.surface;
      context.lineWidth = Math.max(1, cell / 7);
      context.beginPath();
      for (const offset of [-0.5, 0, 0.5]) {
        context.moveTo(cell * offset, cell);
        context.lineTo(cell * (offset + 1), 0);
      }
      context.stroke();
      Object.assign(this, { hatchKey: key, hatchPattern: context.createPattern(tile, "repeat") });
      return this.hatchPattern;
    }

    gaps(context, cell) {
      if (this.gapKey === cell) return this.gapPattern;
      const gap = cell > 8 ? Math.round(cell / 7) : 1;
      const tile = layer(cell, cell);
      const lines = tile.getContext("2d");
      lines.fillRect(cell - gap, 0, gap, cell);
      lines.fillRect(0, cell - gap, cell, gap);
      Object.assign(this, { gapKey: cell, gapPattern: context.createPattern(tile, "repeat") });
      return this.gapPattern;
    }

    drawFlashes(context, cell) {
      const now = performance.now();
      const [first, last] = this.span();
      if (this.flashes.size) context.fillStyle = document.body.classList.contains("dark") ? "#ffffff" : "#1a1f2b";
      for (const [index, until] of this.flashes) {
        if (index < first || index >= last) continue;
        const at = Math.floor((index - first) / this.perCell);
        context.globalAlpha = 0.6 * Math.max(0, Math.min(1, (until - now) / FLASH_MS));
        context.fillRect((at % this.columns) * cell, Math.floor(at / this.columns) * cell, cell, cell);
      }
      context.globalAlpha = 1;
    }

    drawSelection(context, cell) {
      if (this.selected === null) return;
      const at = Math.floor((this.selected - this.span()[0]) / this.perCell);
      context.strokeStyle = getComputedStyle(document.body).getPropertyValue("--pt-text");
      context.lineWidth = Math.max(2, cell / 8);
      context.strokeRect((at % this.columns) * cell, Math.floor(at / this.columns) * cell, cell - 1, cell - 1);
    }

    indexAt(event) {
      const column = Math.floor(event.offsetX / this.size);
      const at = Math.floor(event.offsetY / this.size) * this.columns + column;
      const [first, last] = this.span();
      const index = first + at * this.perCell;
      return column < this.columns && index < last ? index : null;
    }

    point(event) {
      this.select(this.indexAt(event));
    }

    select(index) {
      if (index === this.selected) return;
      this.selected = index;
      this.compose();
      this.onHover(index, index === null ? null : this.cells[index]);
    }

    pick(index) {
      if (index === null) return;
      if (this.perCell > 1) {
        this.selected = index;
        this.zoom(8);
      } else this.onPick(index, this.cells[index]);
    }

    key(event) {
      const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
      const step = steps[event.key];
      const [first, last] = this.span();
      if (event.key === "Enter" && this.selected !== null) this.pick(this.selected);
      if (step === undefined) return;
      event.preventDefault();
      const next = this.selected === null ? first : this.selected + step * this.perCell;
      if (next >= first && next < last) this.select(next);
    }
  };

  P.blockState = (cell) => STATES[cell >> 14];
})(window.Pageturn);
