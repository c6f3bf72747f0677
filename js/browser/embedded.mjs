/**
 * Objects that a page carries within itself, and lengths of those that it does not.
 */

import {fromBase64, inflateRaw} from '#platform';
import {UcpError} from '../lib/errors.mjs';

/** @typedef {{length: number, deflated?: string}} Embedded deflated: the bytes (RFC 1951), in base64 */

export class EmbeddedStore {
  /** @type {Map<string, Uint8Array>} of objects that have been read, by key */
  #bytes = new Map();
  fetched = {requests: 0, bytes: 0};

  /** @param {Record<string, Embedded>} objects by key */
  constructor(objects) {
    this.objects = new Map(Object.entries(objects));
  }

  /** @param {string} key */
  #object(key) {
    const object = this.objects.get(key);
    if (!object) throw new UcpError('UCP-E-MISSING', key, 'this page does not carry it: drop the checkpoint on the page');
    return object;
  }

  /**
   * The length of an object in bytes; UCP-E-MISSING if the page does not know it.
   * @param {string} key
   */
  lengthOf(key) {
    return this.#object(key).length;
  }

  /**
   * Reads a range of an object; UCP-E-MISSING, UCP-E-LENGTH.
   * @param {string} key
   * @param {number} offset
   * @param {number} length
   */
  read(key, offset, length) {
    const object = this.#object(key);
    if (object.deflated === undefined) {
      throw new UcpError('UCP-E-MISSING', key, 'this page carries documents alone: drop the checkpoint on the page to see values');
    }
    const bytes = this.#bytes.get(key) ?? inflateRaw(fromBase64(object.deflated), object.length).raw;
    this.#bytes.set(key, bytes);
    if (offset + length > bytes.length) throw new UcpError('UCP-E-LENGTH', key, `ends at ${bytes.length}`);
    return bytes.subarray(offset, offset + length);
  }

  * list() {
    yield* this.objects.keys();
  }

  close() {}
}
