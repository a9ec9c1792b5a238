// Replay: a place among the moments at which something changed in one recording or two, and the buttons that move it.

export class Player {
  // onShow(seconds, place): show what had happened by then; at the last place everything
  constructor(page, onShow) {
    this.page = page;
    this.onShow = onShow;
    this.moments = [];
    this.place = 0;
    this.playing = false;
    this.timer = 0;
    page.first.addEventListener("click", () => this.seek(0));
    page.last.addEventListener("click", () => this.seek(this.moments.length));
    page.back.addEventListener("click", () => this.seek(this.place - 1));
    page.forward.addEventListener("click", () => this.seek(this.place + 1));
    page.play.addEventListener("click", () => this.toggle());
    page.scrub.addEventListener("input", () => this.seek(Number(page.scrub.value)));
    page.speed.addEventListener("change", () => this.playing && this.play());
  }

  // Begin with new recordings; they may still grow.
  start(recordings) {
    this.recordings = recordings;
    this.place = 0;
    this.update();
    this.play();
  }

  // Recordings have grown.
  update() {
    const times = this.recordings.flatMap((one) => one.steps.map((step) => step.seconds));
    this.moments = times.sort((a, b) => a - b);
    if (this.playing && this.speed === 0) {
      this.place = this.moments.length;
      if (!this.waiting) this.pause();
    }
    this.show();
  }

  get speed() {
    return Number(this.page.speed.value);
  }

  seek(place) {
    this.pause();
    this.place = Math.max(0, Math.min(this.moments.length, place));
    this.show();
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
    this.show();
  }

  play() {
    if (!this.recordings) return;
    clearInterval(this.timer);
    if (this.place >= this.moments.length && !this.waiting) this.place = 0;
    this.playing = true;
    if (this.speed === 0) this.update();
    else this.timer = setInterval(() => this.tick(), 1000 / this.speed);
  }

  pause() {
    clearInterval(this.timer);
    this.playing = false;
    this.controls();
  }

  get waiting() {
    return this.recordings.some((one) => one.running);
  }

  tick() {
    if (this.place < this.moments.length) this.place += 1;
    else if (!this.waiting) this.pause();
    this.show();
  }

  // Everything up to now, and pause: for those who want no motion.
  finish() {
    this.place = this.moments.length;
    this.pause();
    this.show();
  }

  show() {
    this.controls();
    const last = this.place >= this.moments.length && !this.waiting;
    this.onShow(last ? Infinity : this.place ? this.moments[this.place - 1] : -1, this.place);
  }

  controls() {
    const { page, place } = this;
    const num = this.moments.length;
    page.scrub.max = num;
    page.scrub.value = place;
    const seconds = place ? this.moments[place - 1] : 0;
    const words = num ? `step ${place} of ${num}, ${seconds.toFixed(2)} s` : "no steps";
    page.place.textContent = words;
    page.scrub.setAttribute("aria-valuetext", words);
    page.play.classList.toggle("playing", this.playing);
    page.play.setAttribute("aria-label", this.playing ? "Pause" : "Play");
    page.first.disabled = page.back.disabled = place === 0;
    page.last.disabled = page.forward.disabled = place >= num;
    page.play.disabled = page.scrub.disabled = num === 0;
  }
}
