/**
 * CRC-32C (Castagnoli, RFC 3720), eight bytes at a time ("slicing by 8").
 */

const POLYNOMIAL = 0x82f63b78;

/** Eight tables of 256 entries, one after the other: table t advances a byte t more bytes. */
const TABLES = (() => {
  const tables = new Int32Array(8 * 256);
  for (let byte = 0; byte < 256; byte += 1) {
    let crc = byte;
    for (let bit = 0; bit < 8; bit += 1) crc = crc & 1 ? (crc >>> 1) ^ POLYNOMIAL : crc >>> 1;
    tables[byte] = crc;
  }
  for (let at = 256; at < tables.length; at += 1) {
    const before = tables[at - 256];
    tables[at] = (before >>> 8) ^ tables[before & 0xff];
  }
  return tables;
})();

/**
 * The CRC-32C of bytes, or of earlier bytes and these.
 * @param {Uint8Array} bytes
 * @param {number} [crc] the CRC of the bytes before
 * @returns {number} unsigned
 */
export function crc32c(bytes, crc = 0) {
  const T = TABLES;
  const whole = bytes.length - (bytes.length % 8);
  let state = ~crc;
  let at = 0;
  while (at < whole) {
    state ^= bytes[at] | (bytes[at + 1] << 8) | (bytes[at + 2] << 16) | (bytes[at + 3] << 24);
    state = T[1792 + (state & 0xff)] ^ T[1536 + ((state >>> 8) & 0xff)]
      ^ T[1280 + ((state >>> 16) & 0xff)] ^ T[1024 + (state >>> 24)]
      ^ T[768 + bytes[at + 4]] ^ T[512 + bytes[at + 5]]
      ^ T[256 + bytes[at + 6]] ^ T[bytes[at + 7]];
    at += 8;
  }
  for (; at < bytes.length; at += 1) state = (state >>> 8) ^ T[(state ^ bytes[at]) & 0xff];
  return ~state >>> 0;
}
