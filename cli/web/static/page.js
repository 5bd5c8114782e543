"use strict";
// Keeps the page fresh. Everything is drawn by the server: what comes is HTML, which is put in the
// place of what was there.
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

  // ------------------------------------------------------------------ for time.js

  // Stops what keeps the page fresh: a moment of the past is shown.
  function hold() {
    delete live.dataset.live;
    clearTimeout(timer);
    live.classList.remove("stale");
    showControl();
  }

  function resume(address) {
    live.dataset.live = address;
    showControl();
    refresh();
  }

  window.foldmq = { live, get, swap, hold, resume, following: () => !document.hidden && !paused };
})();
