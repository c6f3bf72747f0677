/**
 * Stores of a browser's worker: HTTP with ranges, and the files of a dropped directory.
 */

import {UcpError} from '../lib/errors.mjs';

/** The length of an object that the server does not tell. */
const UNKNOWN = -1;

/** Bytes that the first request for an object asks for: most documents are shorter, and blocks as long. */
const FIRST_READ = 1 << 20;
/** Answers that are kept, and the longest of them. */
const KEPT = 8;
const KEPT_BYTES = 2 << 20;

/**
 * Objects below a URL, by synchronous range requests, which workers alone can make.
 * Nothing outside this URL is requested.
 */
export class HttpStore {
  /** @type {Map<string, number>} by key */
  #lengths = new Map();
  /**
   * The last answers, the newest first: who looks around reads the same blocks again.
   * @type {{key: string, offset: number, bytes: Uint8Array}[]}
   */
  #recent = [];
  /** What was fetched: requests, and bytes of their bodies. */
  fetched = {requests: 0, bytes: 0};

  /** @param {string | URL} url of the checkpoint's directory, with a slash at its end */
  constructor(url) {
    this.url = new URL(url);
    if (!this.url.pathname.endsWith('/')) this.url.pathname += '/';
  }

  /**
   * Asks for bytes [start, stop) of an object.
   * @param {string} key
   * @param {number} start
   * @param {number} stop
   * @returns {{bytes: Uint8Array, length: number}} what came, perhaps less, and the object's length
   */
  #request(key, start, stop) {
    const request = new XMLHttpRequest();
    request.open('GET', new URL(key.split('/').map(encodeURIComponent).join('/'), this.url), false);
    request.responseType = 'arraybuffer';
    request.setRequestHeader('Range', `bytes=${start}-${stop - 1}`);
    try {
      request.send();
    } catch {
      throw new UcpError('UCP-E-STORE', key, 'the server cannot be reached, or does not allow this page to read from it');
    }
    const bytes = new Uint8Array(request.response ?? new ArrayBuffer(0));
    this.fetched.requests += 1;
    this.fetched.bytes += bytes.length;
    const total = Number(/\/(\d+)$/.exec(request.getResponseHeader('Content-Range') ?? '')?.[1] ?? UNKNOWN);
    if (request.status === 404 || request.status === 410) throw new UcpError('UCP-E-MISSING', key, 'the server has no such object');
    if (request.status === 416 && total === 0) return {bytes: new Uint8Array(0), length: 0};
    if (request.status === 206 && total >= 0) return {bytes, length: total};
    if (request.status === 200 && bytes.length <= stop) return {bytes: bytes.subarray(start), length: bytes.length};
    if (request.status === 206) {
      throw new UcpError('UCP-E-STORE', key, 'the server does not let this page see the header Content-Range (Access-Control-Expose-Headers)');
    }
    const detail = request.status === 200 ? 'the server does not answer range requests' : `the server says ${request.status}`;
    throw new UcpError('UCP-E-STORE', key, detail);
  }

  /**
   * The length of an object in bytes; UCP-E-MISSING if there is none.
   * @param {string} key
   */
  lengthOf(key) {
    const known = this.#lengths.get(key);
    if (known !== undefined) return known;
    const {bytes, length} = this.#request(key, 0, FIRST_READ);
    this.#lengths.set(key, length);
    this.#keep(key, 0, bytes);
    return length;
  }

  /**
   * Reads a range of an object.
   * @param {string} key
   * @param {number} offset
   * @param {number} length
   * @throws {UcpError} UCP-E-MISSING, UCP-E-LENGTH, UCP-E-STORE
   */
  read(key, offset, length) {
    const known = this.#lengths.get(key);
    if (known !== undefined && offset + length > known) this.#ends(key, known, offset + length);
    const kept = this.#recent.find((one) => (
      one.key === key && one.offset <= offset && offset + length <= one.offset + one.bytes.length));
    if (kept) return kept.bytes.slice(offset - kept.offset, offset - kept.offset + length);
    if (length === 0) return new Uint8Array(0);
    const answer = this.#request(key, offset, offset + length);
    this.#lengths.set(key, answer.length);
    if (offset + length > answer.length) this.#ends(key, answer.length, offset + length);
    if (answer.bytes.length !== length) throw new UcpError('UCP-E-STORE', key, 'the server answers with another range');
    this.#keep(key, offset, answer.bytes);
    return answer.bytes;
  }

  /**
   * @param {string} key
   * @param {number} offset
   * @param {Uint8Array} bytes
   */
  #keep(key, offset, bytes) {
    if (bytes.length > KEPT_BYTES) return;
    this.#recent.unshift({key, offset, bytes: bytes.slice()});
    this.#recent.length = Math.min(this.#recent.length, KEPT);
  }

  /**
   * @param {string} key
   * @param {number} length
   * @param {number} wanted
   * @returns {never}
   */
  #ends(key, length, wanted) {
    throw new UcpError('UCP-E-LENGTH', key, `ends at ${length}, before ${wanted}`);
  }

  /** Nobody can list over HTTP: what nothing refers to stays unknown. */
  list() {
    return [];
  }

  close() {
    this.#lengths.clear();
    this.#recent = [];
  }
}

/** Files of a directory that a person has chosen or dropped. */
export class FilesStore {
  fetched = {requests: 0, bytes: 0};

  /** @param {Map<string, Blob>} files by key */
  constructor(files) {
    this.files = files;
  }

  /** @param {string} key */
  #file(key) {
    const file = this.files.get(key);
    if (!file) throw new UcpError('UCP-E-MISSING', key, 'the directory has no such file');
    return file;
  }

  /**
   * The length of an object in bytes; UCP-E-MISSING if there is none.
   * @param {string} key
   */
  lengthOf(key) {
    return this.#file(key).size;
  }

  /**
   * Reads a range of an object; UCP-E-MISSING, UCP-E-LENGTH, UCP-E-STORE.
   * @param {string} key
   * @param {number} offset
   * @param {number} length
   */
  read(key, offset, length) {
    const file = this.#file(key);
    if (offset + length > file.size) throw new UcpError('UCP-E-LENGTH', key, `ends at ${file.size}, before ${offset + length}`);
    this.fetched.requests += 1;
    this.fetched.bytes += length;
    try {
      // Of workers alone, which the types of pages do not have.
      const reader = new /** @type {any} */ (globalThis).FileReaderSync();
      return new Uint8Array(reader.readAsArrayBuffer(file.slice(offset, offset + length)));
    } catch (error) {
      throw new UcpError('UCP-E-STORE', key, `the browser says ${/** @type {Error} */ (error).name}`);
    }
  }

  * list() {
    yield* this.files.keys();
  }

  close() {}
}
