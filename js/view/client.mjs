/**
 * Questions to workers.
 */

/** Parts of an index from which on several workers read them, and most workers. */
const MANY_PARTS = 4;
const MAX_WORKERS = 4;

/** @typedef {import('./worker.mjs').Methods} Methods */

/** What the worker answers in place of a result. */
export class Refusal extends Error {
  /** @param {{code: string | null, at: string, detail: string}} told */
  constructor({code, at, detail}) {
    super([code, at, detail].filter(Boolean).join(': '));
    this.code = code;
    this.at = at;
    this.detail = detail;
  }
}

/** A worker that answers questions in turn. */
export class Client {
  #pending = new Map();
  #next = 0;
  /** What the worker has fetched, and what others have that ended. */
  #fetched = {requests: 0, bytes: 0};
  #before = {requests: 0, bytes: 0};
  /** @type {(fetched: {requests: number, bytes: number}) => void} called with what was fetched so far, after each answer */
  onfetched = () => {};

  /** @param {() => Worker} makeWorker */
  constructor(makeWorker) {
    this.makeWorker = makeWorker;
    this.worker = makeWorker();
    this.worker.onmessage = ({data}) => {
      const {resolve, reject} = this.#pending.get(data.id);
      this.#pending.delete(data.id);
      this.#fetched = data.fetched;
      this.#tell();
      if (data.error) reject(new Refusal(data.error));
      else resolve(data.result);
    };
  }

  #tell() {
    this.onfetched({requests: this.#before.requests + this.#fetched.requests, bytes: this.#before.bytes + this.#fetched.bytes});
  }

  /**
   * @template {keyof Methods} M
   * @param {M} method
   * @param {Parameters<Methods[M]>[0]} params
   * @returns {Promise<ReturnType<Methods[M]>>}
   */
  ask(method, params) {
    const id = this.#next;
    this.#next += 1;
    return new Promise((resolve, reject) => {
      this.#pending.set(id, {resolve, reject});
      this.worker.postMessage({id, method, params});
    });
  }

  /**
   * The atoms of each index part of a side that is open, in order. Many parts are read by several workers, since
   * parsing and checking is most of the work.
   * @param {{side: string, source: import('./worker.mjs').Source, parts: number, contents: boolean}} what
   * @returns {AsyncGenerator<import('./tree.mjs').AtomRow[]>}
   */
  async* parts({
    side, source, parts, contents,
  }) {
    const more = parts < MANY_PARTS ? 0 : Math.min(MAX_WORKERS, navigator.hardwareConcurrency || 1) - 1;
    const helpers = Array.from({length: more}, () => new Client(this.makeWorker));
    const clients = [this, ...helpers];
    try {
      for (const helper of helpers) helper.ask('open', {side, source}).catch(() => {}); // refused, it refuses its parts
      const answers = Array.from({length: parts}, (_, part) => clients[part % clients.length].ask('part', {side, part, contents}));
      for (const answer of answers) answer.catch(() => {}); // the first that is refused ends the reading below
      for (const answer of answers) yield JSON.parse(await answer);
    } finally {
      for (const helper of helpers) {
        helper.worker.terminate();
        this.#before.requests += helper.#fetched.requests;
        this.#before.bytes += helper.#fetched.bytes;
      }
      this.#tell();
    }
  }
}
