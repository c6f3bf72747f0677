// Reads {"schemas": [...], "documents": [{"schema": uri, "value": ...}, ...]} from standard input and prints
// the verdicts of ajv as an array of booleans. NODE modules are found beside the folder given as argument.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const require = createRequire(process.argv[2] + "/");
const { default: Ajv } = require("ajv/dist/2020.js");

const input = JSON.parse(readFileSync(0, "utf8"));
const ajv = new Ajv({ strict: false, allErrors: false });
for (const schema of input.schemas) ajv.addSchema(schema);
const verdicts = input.documents.map(({ schema, value }) => ajv.getSchema(schema)(value) === true);
process.stdout.write(JSON.stringify(verdicts));
