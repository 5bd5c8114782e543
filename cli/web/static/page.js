"use strict";
// Keeps the page fresh, and moves a session through time. Everything is drawn by the server:
// what comes is HTML, which is put in the place of what was there.
(() => {
  const EVERY = 2000;
  const DEBOUNCE = 120;
  const LATE = 4000;
  const live = document.getElementById("live");
  const notice = document.getElementById("notice");
  const control = document.querySelector(".live-control");
  const state = document.getElementById("live-state");
  const toggle = document.getElementById("live-toggle");
  let paused = false;
  let timer = 0;

  function say(sentence) {
    if (notice.textContent !== sentence) notice.textContent = sentence;
    notice.hidden = !sentence;
  }

  // ------------------------------------------------------------------ fragments

  // What has the focus, so that it can be given back to what takes its place.
  function focused(element) {
    const active = document.activeElement;
    if (!active || !element.contains(active)) return null;
    for (const name of ["id", "href", "aria-label"]) {
      const value = active.getAttribute(name);
      if (value) return [active.localName, name, value, active.rel];
    }
    return null;
  }

  function giveBack(element, before) {
    if (!before) return;
    const [tag, name, value, rel] = before;
    const all = [...element.querySelectorAll(tag)];
    const same = all.find((one) => one.getAttribute(name) === value);
    const alike = rel ? all.find((one) => one.rel === rel) : null;
    const found = same || alike;
    if (found) found.focus({ preventScroll: true });
  }

  function swap(element, html) {
    const before = focused(element);
    const scrolled = new Map();
    for (const one of element.querySelectorAll(".scroll")) {
      if (one.scrollLeft) scrolled.set(one.getAttribute("aria-label"), one.scrollLeft);
    }
    const made = new DOMParser().parseFromString(html, "text/html");
    element.replaceChildren(...made.body.childNodes);
    for (const one of element.querySelectorAll(".scroll")) {
      one.scrollLeft = scrolled.get(one.getAttribute("aria-label")) || 0;
    }
    giveBack(element, before);
  }

  function sentence(html) {
    const made = new DOMParser().parseFromString(html, "text/html");
    return made.body.textContent.trim();
  }

  // Gives the HTML, or null after saying what is wrong.
  async function get(address, signal) {
    let answer, text;
    try {
      answer = await fetch(address, { signal, cache: "no-store", redirect: "error" });
      text = await answer.text();
    } catch (error) {
      if (error.name === "AbortError") return null;
      say("The page is not served at present: the broker may have ended. It goes on by itself.");
      return null;
    }
    if (answer.ok) {
      say("");
      return text;
    }
    if (answer.status === 401) say("You are not logged in any more: load the page again.");
    else say(sentence(text));
    return null;
  }

  // ------------------------------------------------------------------ live

  function selecting() {
    const chosen = document.getSelection();
    return chosen && !chosen.isCollapsed && live.contains(chosen.anchorNode);
  }

  // What is shown is not true any more, as far as one knows.
  function markStale(stale) {
    live.classList.toggle("stale", stale);
    state.classList.toggle("away", stale);
    state.textContent = stale ? "away" : "live";
  }

  async function refresh() {
    const address = live.dataset.live;
    if (!address) return;
    let pause = EVERY;
    if (!document.hidden && !paused && !selecting()) {
      const begun = performance.now();
      const late = setTimeout(() => {
        if (live.dataset.live === address && !paused) markStale(true);
      }, LATE);
      const html = await get(address, AbortSignal.timeout(15000));
      clearTimeout(late);
      if (live.dataset.live !== address) return;
      if (html !== null && live.dataset.away) {
        location.replace(live.dataset.away);
        return;
      }
      markStale(html === null);
      if (html !== null) swap(live, html);
      // What takes long is asked for more rarely: the broker has other things to do.
      pause = Math.max(pause, 10 * (performance.now() - begun));
    }
    again(pause);
  }

  function again(pause) {
    clearTimeout(timer);
    if (live.dataset.live) timer = setTimeout(refresh, pause);
  }

  function showControl() {
    if (control) control.hidden = !live.dataset.live;
  }

  if (live) {
    showControl();
    again(EVERY);
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && live.dataset.live && !paused) {
        clearTimeout(timer);
        refresh();
      }
    });
  }
  if (toggle) {
    toggle.addEventListener("click", () => {
      paused = !paused;
      toggle.setAttribute("aria-pressed", String(paused));
      toggle.textContent = paused ? "Go on" : "Pause";
      state.classList.toggle("paused", paused);
      state.textContent = paused ? "paused" : "live";
    });
  }

  // ------------------------------------------------------------------ time

  const timeline = document.getElementById("timeline");
  if (!timeline || !live) return;
  const slider = document.getElementById("slider");
  const moment = document.getElementById("moment");
  const where = document.getElementById("where");
  const folding = document.getElementById("folding");
  const at = document.getElementById("at");
  const livePage = timeline.dataset.page;
  const liveAddress = `${livePage}&part=live`;
  let loading = null;
  let waiting = 0;

  function wait(milliseconds) {
    return new Promise((resolve) => setTimeout(resolve, milliseconds));
  }

  async function measure() {
    for (;;) {
      let answer, found;
      try {
        answer = await fetch(timeline.dataset.timeline, { cache: "no-store", redirect: "error" });
        found = answer.ok ? await answer.json() : null;
      } catch {
        found = null;
      }
      if (!found) return;
      if (found.ready) {
        folding.hidden = true;
        setRange(found);
        return;
      }
      folding.hidden = false;
      folding.querySelector("progress").value = found.percent;
      folding.querySelector("span").textContent =
        `${found.percent} %, ${found.done.toLocaleString("en")} of ${found.of.toLocaleString("en")} records`;
      await wait(400);
    }
  }

  function setRange(found) {
    if (found.why || found.last < 1) {
      folding.hidden = !found.why;
      folding.textContent = found.why || "";
      return;
    }
    const atEnd = slider.hidden || moment.value === moment.max;
    moment.min = found.first;
    moment.max = found.last;
    if (live.dataset.record) moment.value = live.dataset.record;
    else if (atEnd) moment.value = found.last;
    slider.querySelector("path").setAttribute("d", found.bars);
    document.getElementById("first").textContent = `record ${found.first.toLocaleString("en")}`;
    document.getElementById("last").textContent = found.last.toLocaleString("en");
    slider.hidden = false;
    showWhere();
  }

  function showWhere() {
    const now = Boolean(live.dataset.live);
    const shown = live.querySelector(".moment[data-at]");
    const text = now ? "now" : `record ${Number(moment.value).toLocaleString("en")}`;
    where.textContent = text;
    const told = !now && shown ? shown.querySelector("strong").textContent : text;
    moment.setAttribute("aria-valuetext", told);
  }

  // Shows the state as of a moment; what was asked for before is not wanted any more.
  async function show(place) {
    if (loading) loading.abort();
    loading = new AbortController();
    const mine = loading;
    delete live.dataset.live;
    clearTimeout(timer);
    showControl();
    const address = `${timeline.dataset.past}&at=${encodeURIComponent(place)}`;
    for (;;) {
      const html = await get(address, mine.signal);
      if (mine.signal.aborted || html === null) return;
      swap(live, html);
      live.classList.remove("stale");
      const shown = live.querySelector(".moment[data-at]");
      if (shown) {
        arrived(shown, place);
        return;
      }
      await wait(400); // the log is being read: what came says how far
      if (mine.signal.aborted) return;
    }
  }

  function arrived(shown, place) {
    live.dataset.record = shown.dataset.record;
    at.value = shown.dataset.at;
    history.replaceState(null, "", `${livePage}&at=${encodeURIComponent(shown.dataset.at)}`);
    if (Number(shown.dataset.record) > Number(moment.max)) moment.max = shown.dataset.record;
    if (document.activeElement !== moment || String(place) !== moment.value) {
      moment.value = shown.dataset.record;
    }
    showWhere();
  }

  function backToNow() {
    if (loading) loading.abort();
    live.dataset.live = liveAddress;
    delete live.dataset.record;
    at.value = "";
    history.replaceState(null, "", livePage);
    showControl();
    moment.value = moment.max;
    showWhere();
    refresh();
  }

  moment.addEventListener("input", () => {
    where.textContent = `record ${Number(moment.value).toLocaleString("en")}`;
    clearTimeout(waiting);
    waiting = setTimeout(() => show(moment.value), DEBOUNCE);
  });
  timeline.addEventListener("click", (event) => {
    if (event.target.id === "now") {
      event.preventDefault();
      backToNow();
    }
  });
  timeline.querySelector("form").addEventListener("submit", (event) => {
    if (!at.value.trim()) return;
    event.preventDefault();
    show(at.value.trim());
  });
  live.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-at]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    show(link.dataset.at);
  });
  setInterval(() => {
    if (live.dataset.live && !document.hidden && !paused && !slider.hidden) measure();
  }, 5 * EVERY);
  measure();
})();
