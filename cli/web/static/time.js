"use strict";
// The time axis: shows the state as of a moment, zooms, plays, and compares two pinned moments.
(() => {
  const page = window.foldmq;
  const timeline = document.getElementById("timeline");
  if (!page || !page.live || !timeline) return;
  const SVG = "http://www.w3.org/2000/svg";
  const DEBOUNCE = 120;
  const MEASURE = 10000;
  const SHORTEST = 1000;
  const PLAY_STEPS = 100;
  const PLAY_PAUSE = 150;
  const LISTED = 200;
  const { live } = page;
  const find = (id) => document.getElementById(id);
  const axis = find("axis");
  const moment = find("moment");
  const where = find("where");
  const folding = find("folding");
  const at = find("at");
  const playing = find("play");
  const pins = { a: find("pin-a"), b: find("pin-b") };
  const livePage = timeline.dataset.page;
  const liveAddress = join(livePage, { part: "live" });
  let drawn = null; // the axis as the server describes it
  let view = { span: null, to: null }; // null: all of it, and up to now
  let current = live.dataset.ms ? Number(live.dataset.ms) : null; // null: now
  let loading = null;
  let waiting = 0;
  let player = 0;

  function join(address, values) {
    const made = new URL(address, location.href);
    for (const [key, value] of Object.entries(values)) {
      if (value) made.searchParams.set(key, value);
    }
    return made.pathname + made.search;
  }

  function wait(milliseconds) {
    return new Promise((resolve) => setTimeout(resolve, milliseconds));
  }

  // The time of the server.
  function now() {
    return drawn.last + performance.now() - drawn.at;
  }

  function clock(ms) {
    const text = new Date(ms + drawn.offset).toISOString();
    return `${text.slice(0, 10)} ${text.slice(11, drawn.to - drawn.from < 120000 ? 23 : 19)}`;
  }

  function iso(ms) {
    return new Date(Math.round(ms)).toISOString();
  }

  // ------------------------------------------------------------------ the axis

  function bounds() {
    if (view.span === null || drawn === null) return {};
    const end = view.to === null ? now() : view.to;
    return { from: String(Math.round(end - view.span)), to: String(Math.round(end)) };
  }

  async function measure() {
    for (;;) {
      let found = null;
      try {
        const address = join(timeline.dataset.axis, bounds());
        const answer = await fetch(address, { cache: "no-store", redirect: "error" });
        found = answer.ok ? await answer.json() : null;
      } catch {
        found = null;
      }
      if (!found) return;
      folding.hidden = !found.reading && !found.why;
      folding.querySelector("progress").hidden = !found.reading || found.percent === null;
      folding.querySelector("progress").value = found.percent || 0;
      folding.querySelector("span").textContent = found.why || found.reading || "";
      if (found.axis) draw(found.axis);
      if (!found.reading) return;
      await wait(400);
    }
  }

  function element(name, attributes, parent) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (parent) parent.append(made);
    return made;
  }

  function draw(found) {
    drawn = { ...found, at: performance.now() };
    moment.min = found.from;
    moment.max = found.to;
    const shown = current === null ? found.to : current;
    moment.value = Math.min(Math.max(shown, found.from), found.to);
    axis.querySelector("#bars path").setAttribute("d", found.bars);
    for (const lane of found.lanes) drawLane(lane);
    const ticks = axis.querySelector(".ticks");
    ticks.replaceChildren(
      ...found.ticks.map(([place, label]) => {
        const tick = document.createElement("span");
        tick.textContent = label;
        tick.style.left = `${place / 10}%`;
        return tick;
      }),
    );
    drawPins();
    listMarks();
    axis.hidden = false;
    find("player").hidden = false;
    showWhere();
  }

  function drawLane(lane) {
    const row = axis.querySelector(`.lane[data-kind="${lane.kind}"]`);
    row.querySelector("b").textContent = lane.total.toLocaleString("en");
    row.classList.toggle("none", !lane.total);
    const svg = row.querySelector("svg");
    svg.setAttribute("aria-label", `${lane.label}: ${lane.total}`);
    svg.replaceChildren();
    for (const [place, count, , ms] of lane.marks) {
      // Height and width grow with the number of digits: one event is a tick, thousands a block.
      const size = Math.min(4, Math.log10(count));
      const tall = 3 + size;
      const line = element("path", { d: `M${place} ${8 - tall}V${8 + tall}` }, svg);
      line.setAttribute("vector-effect", "non-scaling-stroke");
      line.style.strokeWidth = `${(1.5 + 2 * size).toFixed(1)}px`;
      element("title", {}, line).textContent = `${lane.label}: ${count}, ${clock(ms)}`;
    }
  }

  function listMarks() {
    const rows = drawn.lanes.flatMap((lane) =>
      lane.marks.map(([, count, record, ms]) => ({ ms, label: lane.label, count, record })),
    );
    rows.sort((one, other) => other.ms - one.ms);
    find("marks").hidden = !rows.length;
    find("marks-list").replaceChildren(
      ...rows.slice(0, LISTED).map((row) => {
        const item = document.createElement("li");
        const link = document.createElement("a");
        link.href = join(livePage, { at: String(row.record) });
        link.dataset.at = String(row.record);
        link.textContent = clock(row.ms);
        item.append(link, ` ${row.label}${row.count > 1 ? `: ${row.count.toLocaleString("en")}` : ""}`);
        return item;
      }),
    );
  }

  function showWhere() {
    const text = current === null ? "now" : clock(current);
    where.textContent = text;
    moment.setAttribute("aria-valuetext", text);
  }

  // Zooms around the displayed moment.
  function zoom(factor) {
    if (!drawn) return;
    const span = drawn.to - drawn.from;
    const wanted = Math.max(SHORTEST, span * factor);
    if (wanted >= drawn.last - drawn.first) view = { span: null, to: null };
    else if (current === null) view = { span: wanted, to: null };
    else {
      const share = (current - drawn.from) / span;
      view = { span: wanted, to: current + (1 - Math.min(Math.max(share, 0), 1)) * wanted };
    }
    measure();
  }

  function move(share) {
    if (!drawn) return;
    const span = drawn.to - drawn.from;
    const to = Math.max(drawn.to + share * span, drawn.first + span);
    view = { span, to: to >= drawn.last ? null : to };
    measure();
  }

  // A moment outside the visible part becomes its middle.
  function uncover(ms) {
    if (drawn && (ms < drawn.from || ms > drawn.to)) {
      const span = drawn.to - drawn.from;
      view = { span, to: ms + span / 2 >= drawn.last ? null : ms + span / 2 };
      measure();
    }
  }

  // ------------------------------------------------------------------ moments

  function address() {
    return { at: current === null ? null : at.value, a: pins.a.value, b: pins.b.value };
  }

  function remember() {
    history.replaceState(null, "", join(livePage, address()));
  }

  // Shows the state as of a moment and cancels the previous request. If a time was
  // requested, the axis stays at it: the last record until then may be older.
  async function show(place, ms = null) {
    if (loading) loading.abort();
    loading = new AbortController();
    const mine = loading;
    page.hold();
    for (;;) {
      const html = await page.get(join(timeline.dataset.past, { at: String(place) }), mine.signal);
      if (mine.signal.aborted || html === null) return false;
      page.swap(live, html);
      const shown = live.querySelector(".moment[data-at]");
      if (shown) {
        current = ms === null ? Number(shown.dataset.ms) : ms;
        live.dataset.ms = String(current);
        at.value = shown.dataset.at;
        remember();
        if (document.activeElement !== moment && !player) moment.value = current;
        uncover(current);
        showWhere();
        return true;
      }
      await wait(400); // the log is being read; the response shows the progress
      if (mine.signal.aborted) return false;
    }
  }

  function backToNow() {
    stop();
    if (loading) loading.abort();
    current = null;
    delete live.dataset.ms;
    at.value = "";
    remember();
    if (drawn) moment.value = drawn.to;
    page.resume(liveAddress);
    if (drawn) showWhere();
  }

  function slide() {
    const ms = Number(moment.value);
    current = ms;
    showWhere();
    clearTimeout(waiting);
    waiting = setTimeout(() => show(iso(ms), ms), DEBOUNCE);
  }

  moment.addEventListener("input", () => {
    stop();
    slide();
  });
  moment.addEventListener("keydown", (event) => {
    if (!drawn) return;
    const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };
    if (!(event.key in step)) return;
    event.preventDefault();
    stop();
    moment.value = Number(moment.value) + (step[event.key] * (drawn.to - drawn.from)) / 200;
    slide();
  });

  // ------------------------------------------------------------------ playing

  async function play() {
    const mine = ++player;
    playing.textContent = "Stop";
    playing.setAttribute("aria-pressed", "true");
    if (current === null || current >= drawn.to) current = drawn.from;
    view = { span: drawn.to - drawn.from, to: drawn.to };
    let ms = current;
    while (player === mine) {
      const step = ((drawn.to - drawn.from) / PLAY_STEPS) * Number(find("speed").value);
      ms = Math.min(ms + step, drawn.to);
      moment.value = ms;
      const found = await show(iso(ms), ms);
      if (player !== mine) return;
      if (!found || ms >= drawn.to) break;
      await wait(PLAY_PAUSE);
    }
    if (player === mine) stop();
  }

  function stop() {
    player = player ? 0 : player;
    playing.textContent = "Play";
    playing.setAttribute("aria-pressed", "false");
  }

  // ------------------------------------------------------------------ pins

  function drawPins() {
    for (const [name, input] of Object.entries(pins)) {
      const flag = axis.querySelector(`.pin[data-pin="${name}"]`);
      const ms = Number(input.dataset.ms || NaN);
      const end = view.to === null ? Math.max(ms, drawn.to) : drawn.to; // now may be later than the axis
      const place = (ms - drawn.from) / (end - drawn.from);
      flag.hidden = !(place >= 0 && place <= 1);
      flag.style.left = `${100 * place}%`;
    }
  }

  function pin(name) {
    if (!drawn) return;
    const input = pins[name];
    const ms = current === null ? now() : current;
    input.value = current === null ? iso(ms) : at.value;
    input.dataset.ms = ms;
    drawPins();
    remember();
    if (pins.a.value && pins.b.value) compare();
  }

  async function compare() {
    const place = find("difference");
    const wanted = join(timeline.dataset.diff, { a: pins.a.value, b: pins.b.value });
    for (;;) {
      const html = await page.get(wanted);
      if (html === null) return;
      page.swap(place, html);
      if (!place.querySelector("[data-folding]")) break;
      await wait(400);
    }
    placePins();
    if (drawn) drawPins();
    remember();
  }

  // Sets the times of typed moments from the difference.
  function placePins() {
    for (const [name, input] of Object.entries(pins)) {
      const told = document.querySelector(`[data-pin-ms="${name}"]`);
      if (told && !input.dataset.ms) input.dataset.ms = told.dataset.ms;
    }
  }

  // ------------------------------------------------------------------ buttons and marks

  timeline.addEventListener("click", (event) => {
    const pressed = event.target.closest("button, a, svg");
    if (!pressed) return;
    const { zoom: factor, move: share, span, pin: name } = pressed.dataset;
    if (pressed.id === "now") {
      event.preventDefault();
      backToNow();
    } else if (pressed === playing) {
      if (player) stop();
      else if (drawn) play();
    } else if (factor) zoom(Number(factor));
    else if (share) move(Number(share));
    else if (span) {
      view = { span: Number(span) || null, to: null };
      if (current !== null && view.span) view.to = current + view.span / 2;
      measure();
    } else if (name) pin(name);
    else if (pressed.dataset.at) {
      event.preventDefault();
      stop();
      show(pressed.dataset.at);
    } else if (pressed.closest(".lane")) pick(pressed, event.clientX);
  });

  // Shows the mark of a lane that is nearest to the pointer.
  function pick(svg, x) {
    const lane = drawn.lanes.find((one) => one.kind === svg.closest(".lane").dataset.kind);
    const box = svg.getBoundingClientRect();
    const place = (1000 * (x - box.left)) / box.width;
    let nearest = null;
    for (const mark of lane.marks) {
      if (!nearest || Math.abs(mark[0] - place) < Math.abs(nearest[0] - place)) nearest = mark;
    }
    if (!nearest) return;
    stop();
    show(String(nearest[2]));
  }

  find("moment-form").addEventListener("submit", (event) => {
    if (!at.value.trim()) return;
    event.preventDefault();
    stop();
    show(at.value.trim());
  });
  find("pins-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (pins.a.value.trim() && pins.b.value.trim()) compare();
  });
  live.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-at]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    stop();
    show(link.dataset.at);
  });
  for (const input of Object.values(pins)) {
    input.addEventListener("input", () => delete input.dataset.ms);
  }
  for (const one of timeline.querySelectorAll("[data-pin][type=button]")) one.hidden = false;
  setInterval(() => {
    if (current === null && page.following() && drawn) measure();
  }, MEASURE);
  placePins();
  measure();
  // The page was rendered before the log was read: request the moment again.
  if (!live.dataset.live && !live.querySelector(".moment") && at.value) show(at.value);
  if (document.querySelector("#difference [data-folding]")) compare();
})();
