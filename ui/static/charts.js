// Lines over time on a canvas: several of one kind share a scale and the crosshair. Gaps stay gaps. Sharp on every pixel ratio.
"use strict";

(function (P) {
  const HEIGHT = 120;
  const [LEFT, BOTTOM, TOP] = [0, 18, 8];
  const COLOURS = ["accent", "warn", "good"];

  // Fits the bitmap to the element; returns a context that draws in CSS pixels, and the width.
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

  P.clock = function (seconds, span) {
    const date = new Date(seconds * 1000);
    if (span > 2 * 86400) return date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    return date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(span <= 120 ? { second: "2-digit" } : {}) });
  };

  // The end of a scale: the next of 1, 2, 5, 10, 20, ... so that its half is a number that people say.
  function roundUp(value) {
    const power = 10 ** Math.floor(Math.log10(value));
    return power * [1, 2, 5, 10].find((step) => step * power >= value * (1 - 1e-9));
  }

  // A point of time in a span, as exactly as its points are apart.
  P.moment = function (seconds, span) {
    const date = new Date(seconds * 1000);
    const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    const clock = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(span <= 3600 ? { second: "2-digit" } : {}) });
    return span > 86400 / 2 ? `${day}, ${clock}` : clock;
  };

  P.LineChart = class {
    // `lines`: [name, function of a row]; the scale ends at `least` or higher; `format` writes a value.
    constructor(element, { title, lines, least, most, format, crosshair }) {
      Object.assign(this, { element, lines, least, most, format, crosshair, history: null, at: null });
      this.canvas = P.h("canvas", { role: "img", "aria-label": title });
      this.value = P.h("b", { class: "pt-chart-value" });
      const legend = lines.length > 1 ? lines.map(([name], index) => P.h("span", { class: `pt-key pt-key-${COLOURS[index]}` }, name)) : [];
      element.append(P.h("header", {}, P.h("h4", {}, title, ...legend), this.value), this.canvas);
      this.canvas.addEventListener("pointermove", (event) => crosshair.move(this.timeAt(event)));
      this.canvas.addEventListener("pointerleave", () => crosshair.move(null));
      this.canvas.addEventListener("pointerdown", (event) => {
        this.canvas.setPointerCapture(event.pointerId);
        crosshair.start(this.timeAt(event));
      });
      this.canvas.addEventListener("pointerup", (event) => crosshair.end(this.timeAt(event)));
      this.canvas.addEventListener("pointercancel", () => crosshair.cancel());
      new ResizeObserver(() => this.draw()).observe(this.canvas);
    }

    set(history) {
      this.history = history;
      this.draw();
    }

    timeAt(event) {
      if (!this.history) return null;
      const share = Math.max(0, Math.min(1, event.offsetX / this.canvas.clientWidth));
      return this.history.start + share * (this.history.end - this.history.start);
    }

    // The row at a time: the first that ends at or after it, unless that is beyond a gap.
    rowAt(time) {
      const row = this.history.rows.find((candidate) => candidate.time >= time);
      return row && (!row.after_gap || row.time - time <= this.history.step) ? row : null;
    }

    draw() {
      if (!this.canvas.clientWidth || !this.history) return;
      const { context, width } = prepare(this.canvas, HEIGHT);
      const { start, end, rows } = this.history;
      const values = rows.flatMap((row) => this.lines.map(([, read]) => read(row) ?? 0));
      const top = Math.min(this.most ?? Infinity, roundUp(Math.max(this.least, ...values)));
      const x = (time) => LEFT + ((time - start) / (end - start)) * (width - LEFT);
      const y = (value) => HEIGHT - BOTTOM - (Math.min(value, top) / top) * (HEIGHT - BOTTOM - TOP);
      this.grid(context, width, start, end, top);
      this.lines.forEach(([, read], index) => this.line(context, rows, read, x, y, COLOURS[index]));
      this.cross(context, x, y);
      this.tell();
    }

    // A value is of all the time since the row before: where rows are rare it is a step, not a slope.
    line(context, rows, read, x, y, name) {
      context.beginPath();
      let last = null;
      for (const row of rows) {
        const value = read(row) ?? null;
        if (value === null || row.after_gap) last = null;
        if (value === null) continue;
        if (!last) context.moveTo(row === rows[0] && !row.after_gap ? x(this.history.start) : x(row.time) - 0.75, y(value));
        else if (row.time - last.time > 2 * this.history.step) context.lineTo(x(last.time), y(value));
        context.lineTo(x(row.time), y(value));
        last = row;
      }
      Object.assign(context, { strokeStyle: colour(name), lineWidth: 1.75, lineJoin: "round", lineCap: "round" });
      context.stroke();
    }

    grid(context, width, start, end, top) {
      Object.assign(context, { strokeStyle: colour("border"), lineWidth: 1, fillStyle: colour("soft"), font: "11.5px system-ui, sans-serif" });
      for (const part of [0, 0.5, 1]) {
        const line = Math.round(TOP + part * (HEIGHT - BOTTOM - TOP)) + 0.5;
        context.beginPath();
        context.moveTo(0, line);
        context.lineTo(width, line);
        context.stroke();
      }
      context.fillText(this.format(top), 4, TOP + 13);
      context.fillText(this.format(top / 2), 4, (HEIGHT - BOTTOM + TOP) / 2 + 13);
      for (const [part, align] of [[0, "left"], [0.5, "center"], [1, "right"]]) {
        context.textAlign = align;
        context.fillText(P.clock(start + part * (end - start), end - start), part * width, HEIGHT - 4);
      }
      context.textAlign = "left";
    }

    cross(context, x, y) {
      const { time, from } = this.crosshair;
      if (from !== null && time !== null) {
        context.globalAlpha = 0.15;
        context.fillStyle = colour("accent");
        context.fillRect(Math.min(x(from), x(time)), 0, Math.abs(x(time) - x(from)), HEIGHT - BOTTOM);
        context.globalAlpha = 1;
      }
      if (time === null) return;
      context.strokeStyle = colour("strong-border");
      context.beginPath();
      context.moveTo(x(time), 0);
      context.lineTo(x(time), HEIGHT - BOTTOM);
      context.stroke();
      this.when(context, x(time), time);
      const row = this.rowAt(time);
      this.lines.forEach(([, read], index) => {
        const value = row && read(row);
        if (value === null || value === undefined) return;
        context.fillStyle = colour(COLOURS[index]);
        context.beginPath();
        context.arc(x(row.time), y(value), 3.5, 0, 2 * Math.PI);
        context.fill();
      });
    }

    // The time under the crosshair, in place of the axis there.
    when(context, x, time) {
      const { start, end } = this.history;
      const text = P.moment(time, end - start);
      const width = context.measureText(text).width + 12;
      const left = Math.max(0, Math.min(this.canvas.clientWidth - width, x - width / 2));
      context.fillStyle = colour("text");
      context.fillRect(left, HEIGHT - BOTTOM, width, BOTTOM);
      context.fillStyle = colour("surface");
      context.fillText(text, left + 6, HEIGHT - 5);
    }

    // The values under the crosshair, else the last ones.
    tell() {
      const { time } = this.crosshair;
      const row = time === null ? this.history.rows.at(-1) : this.rowAt(time);
      const texts = this.lines.map(([, read]) => {
        const value = row && read(row);
        return value === null || value === undefined ? "–" : this.format(value);
      });
      P.setText(this.value, texts.join(" · "));
    }
  };
})(window.Pageturn);
