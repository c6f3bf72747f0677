/**
 * Count, range, mean, norm and a histogram of numbers that come in pieces.
 */

const OFFSET = 1100;

/** Sums over numbers; magnitudes are counted by powers of two. */
export class Summary {
  count = 0;
  nan = 0;
  inf = 0;
  zeros = 0;
  minimum = Infinity;
  maximum = -Infinity;
  total = 0;
  squares = 0;
  #positive = new Float64Array(2 * OFFSET);
  #negative = new Float64Array(2 * OFFSET);

  /** @param {Float64Array} numbers */
  add(numbers) {
    this.count += numbers.length;
    for (let i = 0; i < numbers.length; i += 1) {
      const x = numbers[i];
      if (x === 0) this.zeros += 1;
      if (x - x !== 0) {
        if (Number.isNaN(x)) this.nan += 1;
        else this.inf += 1;
        continue;
      }
      if (x < this.minimum) this.minimum = x;
      if (x > this.maximum) this.maximum = x;
      this.total += x;
      this.squares += x * x;
      if (x > 0) this.#positive[Math.floor(Math.log2(x)) + OFFSET] += 1;
      else if (x < 0) this.#negative[Math.floor(Math.log2(-x)) + OFFSET] += 1;
    }
  }

  /**
   * Adds `count` zeros.
   * @param {number} count
   */
  addZeros(count) {
    if (count === 0) return;
    this.count += count;
    this.zeros += count;
    this.minimum = Math.min(this.minimum, 0);
    this.maximum = Math.max(this.maximum, 0);
  }

  /** What the page shows; `minimum` and `maximum` are null where no number is finite. */
  result() {
    const finite = this.count - this.nan - this.inf;
    /**
     * @param {Float64Array} counts
     * @returns {[power: number, count: number][]}
     */
    const bars = (counts) => [...counts.entries()].filter(([, count]) => count > 0).map(([at, count]) => [at - OFFSET, count]);
    return {
      count: this.count,
      nan: this.nan,
      inf: this.inf,
      zeros: this.zeros,
      minimum: finite > 0 ? this.minimum : null,
      maximum: finite > 0 ? this.maximum : null,
      mean: finite > 0 ? this.total / finite : null,
      norm: Math.sqrt(this.squares),
      positive: bars(this.#positive),
      negative: bars(this.#negative),
    };
  }
}
