/**
 * Questions to the worker.
 */

/** What the worker answers in place of a result. */
export class Refusal extends Error {
  constructor({code, at, detail}) {
    super([code, at, detail].filter(Boolean).join(': '));
    this.code = code;
  }
}

/** A worker that answers questions in turn. */
export class Client {
  #pending = new Map();
  #next = 0;
  /** Called with what was fetched so far, after each answer. */
  onfetched = () => {};

  /** @param {Worker} worker */
  constructor(worker) {
    this.worker = worker;
    worker.onmessage = ({data}) => {
      const {resolve, reject} = this.#pending.get(data.id);
      this.#pending.delete(data.id);
      if (data.fetched) this.onfetched(data.fetched);
      if (data.error) reject(new Refusal(data.error));
      else resolve(data.result);
    };
  }

  /** @returns {Promise<any>} */
  ask(method, params) {
    const id = this.#next;
    this.#next += 1;
    return new Promise((resolve, reject) => {
      this.#pending.set(id, {resolve, reject});
      this.worker.postMessage({id, method, params});
    });
  }
}
