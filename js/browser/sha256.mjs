/**
 * SHA-256 (FIPS 180-4), synchronous, of bytes that come in pieces.
 *
 * Browsers have it only behind a promise, and only on pages from HTTPS or from this machine.
 */

/**
 * The first 32 bits of the fractional parts of roots of the first primes.
 * @param {number} count
 * @param {(x: number) => number} root
 */
function rootsOfPrimes(count, root) {
  /** @type {number[]} */
  const primes = [];
  for (let n = 2; primes.length < count; n += 1) if (primes.every((prime) => n % prime !== 0)) primes.push(n);
  return Int32Array.from(primes, (prime) => Math.floor((root(prime) % 1) * 2 ** 32));
}

const START = rootsOfPrimes(8, Math.sqrt);
const ROUNDS = rootsOfPrimes(64, Math.cbrt);
const CHUNK = 64;

/** A SHA-256 of bytes that come in pieces. */
export class Sha256 {
  #state = START.slice();
  #words = new Int32Array(64);
  #pending = new Uint8Array(CHUNK);
  #filled = 0;
  #length = 0;

  /**
   * Takes 64 bytes.
   * @param {Uint8Array} bytes
   * @param {number} at
   */
  #round(bytes, at) {
    const w = this.#words;
    const s = this.#state;
    for (let i = 0; i < 16; i += 1) {
      const j = at + 4 * i;
      w[i] = (bytes[j] << 24) | (bytes[j + 1] << 16) | (bytes[j + 2] << 8) | bytes[j + 3];
    }
    for (let i = 16; i < 64; i += 1) {
      const x = w[i - 15];
      const y = w[i - 2];
      w[i] = (w[i - 16] + ((x >>> 7 | x << 25) ^ (x >>> 18 | x << 14) ^ x >>> 3)
        + w[i - 7] + ((y >>> 17 | y << 15) ^ (y >>> 19 | y << 13) ^ y >>> 10)) | 0;
    }
    let a = s[0];
    let b = s[1];
    let c = s[2];
    let d = s[3];
    let e = s[4];
    let f = s[5];
    let g = s[6];
    let h = s[7];
    for (let i = 0; i < 64; i += 1) {
      const t = (h + ((e >>> 6 | e << 26) ^ (e >>> 11 | e << 21) ^ (e >>> 25 | e << 7))
        + ((e & f) ^ (~e & g)) + ROUNDS[i] + w[i]) | 0;
      const u = (((a >>> 2 | a << 30) ^ (a >>> 13 | a << 19) ^ (a >>> 22 | a << 10))
        + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + t) | 0;
      d = c;
      c = b;
      b = a;
      a = (t + u) | 0;
    }
    s[0] += a;
    s[1] += b;
    s[2] += c;
    s[3] += d;
    s[4] += e;
    s[5] += f;
    s[6] += g;
    s[7] += h;
  }

  /** @param {Uint8Array} bytes */
  update(bytes) {
    this.#length += bytes.length;
    let at = 0;
    if (this.#filled > 0) {
      at = Math.min(bytes.length, CHUNK - this.#filled);
      this.#pending.set(bytes.subarray(0, at), this.#filled);
      this.#filled += at;
      if (this.#filled < CHUNK) return this;
      this.#round(this.#pending, 0);
      this.#filled = 0;
    }
    for (; at + CHUNK <= bytes.length; at += CHUNK) this.#round(bytes, at);
    this.#pending.set(bytes.subarray(at));
    this.#filled = bytes.length - at;
    return this;
  }

  /** The digest of all bytes, in 64 digits; ends the hash. */
  hex() {
    const tail = new Uint8Array(this.#filled < CHUNK - 8 ? CHUNK - this.#filled : 2 * CHUNK - this.#filled);
    tail[0] = 0x80;
    new DataView(tail.buffer).setBigUint64(tail.length - 8, BigInt(this.#length) * 8n);
    this.update(tail);
    return [...this.#state].map((word) => (word >>> 0).toString(16).padStart(8, '0')).join('');
  }
}
