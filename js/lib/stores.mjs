/**
 * What a checkpoint is read from (SPEC section 8).
 *
 * Reading is synchronous: of files in Node, and in a browser within a worker, where requests and
 * file readers can be synchronous and hold up nobody.
 *
 * @typedef {object} Store
 * @property {(key: string) => number} lengthOf length of an object in bytes; UCP-E-MISSING if there is none
 * @property {(key: string, offset: number, length: number) => Uint8Array} read a range of an object;
 *   UCP-E-MISSING, UCP-E-LENGTH where it ends before
 * @property {(under?: string) => Iterable<string>} list keys of all objects; none where nobody can tell
 * @property {() => void} close
 */

export {};
