// Two canvases of the dashboard: the block map and a line over time. Sharp on every pixel ratio, colours from the theme.
"use strict";

(function (P) {
  const STATES = ["free", "cached", "private", "shared"];
  const HUES = [231, 28, 160, 330, 200, 75, 275, 12, 185, 48, 300, 130];

  // Fits the bitmap to the element; returns a context that draws in CSS pixels, and the size.
  function prepare(canvas, height) {
    const width = canvas.clientWidth;
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return { context, width };
  }

  const colour = (name) => getComputedStyle(document.body).getPropertyValue(`--pt-${name}`).trim();

  // Neighbouring owners get distant hues; after a round of hues the lightness changes.
  function ownerColour(owner, dark) {
    const round = Math.floor(owner / HUES.length) % 3;
    const lightness = (dark ? 62 : 52) + (round - 1) * 9;
    return `hsl(${HUES[owner % HUES.length]} 62% ${lightness}%)`;
  }

  P.BlockMap = class {
    constructor(canvas, caption) {
      Object.assign(this, { canvas, caption, cells: new Uint16Array(0), columns: 1, size: 12, height: 0 });
      canvas.addEventListener("pointermove", (event) => this.hover(event));
      canvas.addEventListener("pointerleave", () => P.setText(this.caption, this.resting));
      this.resting = "Point at a block to see whose it is.";
      P.setText(caption, this.resting);
      new ResizeObserver(() => this.draw()).observe(canvas);
    }

    set(cells) {
      this.cells = cells;
      this.draw();
    }

    // Cells as large as a map of at most 320 px allows, between 4 and 18 px.
    layout() {
      const width = this.canvas.clientWidth;
      const count = this.cells.length || 1;
      const fitting = Math.floor(Math.sqrt((width * 320) / count));
      this.size = Math.max(4, Math.min(18, fitting));
      this.columns = Math.max(1, Math.floor(width / this.size));
      this.height = Math.ceil(count / this.columns) * this.size;
      this.canvas.style.height = `${this.height}px`;
    }

    draw() {
      if (!this.canvas.clientWidth || !this.cells.length) return;
      this.layout();
      const { context } = prepare(this.canvas, this.height);
      const dark = document.body.classList.contains("dark");
      const [free, cached, surface] = [colour("free"), colour("cached"), colour("surface")];
      const gap = this.size > 7 ? 2 : 1;
      this.cells.forEach((cell, index) => {
        const kind = cell >> 14;
        const x = (index % this.columns) * this.size;
        const y = Math.floor(index / this.columns) * this.size;
        context.fillStyle = kind === 0 ? free : kind === 1 ? cached : ownerColour(cell & 0x3fff, dark);
        context.fillRect(x, y, this.size - gap, this.size - gap);
        if (kind === 3) this.hatch(context, x, y, this.size - gap, surface);
      });
    }

    hatch(context, x, y, size, stroke) {
      context.strokeStyle = stroke;
      context.lineWidth = Math.max(1, size / 9);
      context.beginPath();
      context.moveTo(x, y + size);
      context.lineTo(x + size, y);
      context.moveTo(x, y + size / 2);
      context.lineTo(x + size / 2, y);
      context.moveTo(x + size / 2, y + size);
      context.lineTo(x + size, y + size / 2);
      context.stroke();
    }

    hover(event) {
      const index = Math.floor(event.offsetY / this.size) * this.columns + Math.floor(event.offsetX / this.size);
      if (index >= this.cells.length || event.offsetX >= this.columns * this.size) return;
      const kind = STATES[this.cells[index] >> 14];
      const owner = this.cells[index] & 0x3fff;
      P.setText(this.caption, `Block ${index}: ${kind}${owner ? `, held by request ${owner}` : ""}`);
    }
  };

  P.LineChart = class {
    // The scale ends a little above the highest value and at `least` or higher; `format` writes a value.
    constructor(element, { least, format, windowMs }) {
      Object.assign(this, { least, format, windowMs, points: [] });
      this.canvas = element.querySelector("canvas");
      this.value = element.querySelector("output");
      new ResizeObserver(() => this.draw()).observe(this.canvas);
    }

    push(time, value) {
      this.points.push([time, value]);
      while (this.points.length && this.points[0][0] < time - this.windowMs) this.points.shift();
      P.setText(this.value, this.format(value));
      this.draw();
    }

    draw() {
      if (!this.canvas.clientWidth || !this.points.length) return;
      const height = 120;
      const { context, width } = prepare(this.canvas, height);
      const end = this.points.at(-1)[0];
      const highest = Math.max(...this.points.map(([, value]) => value));
      const top = Math.max(this.least, highest * 1.2);
      const x = (time) => width - ((end - time) / this.windowMs) * width;
      const y = (value) => height - 4 - (value / top) * (height - 10);
      this.grid(context, width, height);
      context.beginPath();
      for (const [time, value] of this.points) context.lineTo(x(time), y(value));
      context.strokeStyle = colour("accent");
      context.lineWidth = 2;
      context.lineJoin = "round";
      context.stroke();
      context.lineTo(x(end), height);
      context.lineTo(x(this.points[0][0]), height);
      context.globalAlpha = 0.12;
      context.fillStyle = colour("accent");
      context.fill();
      context.globalAlpha = 1;
      context.fillStyle = colour("soft");
      context.font = "12px system-ui, sans-serif";
      context.fillText(this.format(top), 8, 17);
    }

    grid(context, width, height) {
      context.strokeStyle = colour("border");
      context.lineWidth = 1;
      for (const part of [0.25, 0.5, 0.75]) {
        context.beginPath();
        context.moveTo(0, Math.round(height * part) + 0.5);
        context.lineTo(width, Math.round(height * part) + 0.5);
        context.stroke();
      }
    }
  };
})(window.Pageturn);
