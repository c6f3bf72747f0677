/**
 * The schemas that the reader applies, as published: tests/conformance/test_node.py makes this file.
 */

export default {
  'atom.schema.json':
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "https://ucpformat.org/schema/draft/atom.schema.json",
  "title": "Atom",
  "description": "One parameter or buffer with all its slots (SPEC section 11.1).",
  "type": "object",
  "required": ["name", "key", "slots"],
  "properties": {
    "name": {"$ref": "defs.schema.json#/$defs/name"},
    "key": {"$ref": "defs.schema.json#/$defs/key"},
    "slots": {
      "description": "Slot name to slot.",
      "type": "object",
      "minProperties": 1,
      "additionalProperties": {"$ref": "#/$defs/slot"}
    },
    "aliases": {"type": "array", "items": {"$ref": "defs.schema.json#/$defs/name"}},
    "annotations": {"$ref": "defs.schema.json#/$defs/annotations"}
  },
  "additionalProperties": false,
  "$defs": {
    "place": {
      "description": "Where the tensor lies in the buffer of a layout with a concat (SPEC section 12.1).",
      "type": "object",
      "required": ["offsets", "totals"],
      "properties": {
        "offsets": {
          "type": "array",
          "minItems": 1,
          "items": {"$ref": "defs.schema.json#/$defs/count"}
        },
        "totals": {
          "type": "array",
          "minItems": 1,
          "items": {"$ref": "defs.schema.json#/$defs/count"}
        },
        "axes": {"type": "array", "items": {"type": "string"}}
      },
      "additionalProperties": false
    },
    "slot": {
      "type": "object",
      "required": ["dtype", "shape"],
      "properties": {
        "dtype": {
          "description": "Name of a data type; which there are is UCP-E-DTYPE's business.",
          "type": "string"
        },
        "shape": {"$ref": "defs.schema.json#/$defs/shape"},
        "layout": {"$ref": "defs.schema.json#/$defs/count"},
        "place": {"$ref": "#/$defs/place"},
        "compressor": {"$ref": "defs.schema.json#/$defs/compressor"},
        "content": {"$ref": "defs.schema.json#/$defs/content"},
        "annotations": {"$ref": "defs.schema.json#/$defs/annotations"}
      },
      "additionalProperties": false
    }
  }
},
  'defs.schema.json':
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "https://ucpformat.org/schema/draft/defs.schema.json",
  "title": "Shared definitions",
  "description": "Leaves that several documents of a checkpoint use (SPEC sections 10, 11, 16 and 20). What has an error code of its own, such as the form of keys, names and data types, is checked by semantics and not here.",
  "$defs": {
    "count": {
      "description": "An integer that every language holds exactly.",
      "type": "integer",
      "minimum": 0,
      "maximum": 9007199254740991
    },
    "digest": {
      "description": "SHA-256. The maximum length keeps out the newline that `$` lets pass in some engines.",
      "type": "string",
      "pattern": "^sha256:[0-9a-f]{64}$",
      "maxLength": 71
    },
    "content": {
      "description": "Digest of logical bytes (SPEC section 11.3).",
      "type": "string",
      "pattern": "^crc32c-tree:[0-9a-f]{64}$",
      "maxLength": 76
    },
    "log": {
      "description": "The id of an update log, as `digest` without a newline.",
      "type": "string",
      "pattern": "^[0-9a-f]{32}$",
      "maxLength": 32
    },
    "key": {"description": "Store key; its form is UCP-E-KEY's business.", "type": "string"},
    "name": {"description": "Name of an atom; its form is UCP-E-NAME's business.", "type": "string"},
    "shape": {
      "description": "Extents in elements; their number and product are UCP-E-SHAPE's business.",
      "type": "array",
      "items": {"$ref": "#/$defs/count"}
    },
    "annotations": {"description": "Ignorable by everyone.", "type": "object"},
    "reference": {
      "type": "object",
      "required": ["key", "length", "digest"],
      "properties": {
        "key": {"$ref": "#/$defs/key"},
        "length": {"$ref": "#/$defs/count"},
        "digest": {"$ref": "#/$defs/digest"}
      },
      "additionalProperties": false,
      "description": "Another object of the store, with its length in bytes."
    },
    "extension": {
      "type": "object",
      "properties": {
        "must_understand": {"type": "boolean", "default": true},
        "safe_to_copy": {"type": "boolean", "default": false},
        "configuration": {"type": "object"}
      },
      "additionalProperties": false
    },
    "extensions": {
      "description": "Extension name to extension.",
      "type": "object",
      "additionalProperties": {"$ref": "#/$defs/extension"}
    },
    "compressor": {
      "description": "A Zarr v3 codec from bytes to bytes.",
      "type": "object",
      "required": ["name"],
      "properties": {"name": {"enum": ["blosc", "gzip", "zstd"]}},
      "allOf": [
        {
          "if": {"type": "object", "required": ["name"], "properties": {"name": {"const": "blosc"}}},
          "then": {"$ref": "#/$defs/blosc"}
        },
        {
          "if": {"type": "object", "required": ["name"], "properties": {"name": {"const": "gzip"}}},
          "then": {"$ref": "#/$defs/gzip"}
        },
        {
          "if": {"type": "object", "required": ["name"], "properties": {"name": {"const": "zstd"}}},
          "then": {"$ref": "#/$defs/zstd"}
        }
      ]
    },
    "blosc": {
      "type": "object",
      "required": ["name", "configuration"],
      "properties": {
        "name": {"const": "blosc"},
        "configuration": {
          "type": "object",
          "required": ["blocksize", "clevel", "cname", "shuffle", "typesize"],
          "properties": {
            "blocksize": {"type": "integer", "minimum": 0, "maximum": 2147483647},
            "clevel": {"type": "integer", "minimum": 0, "maximum": 9},
            "cname": {"enum": ["blosclz", "lz4", "lz4hc", "zlib", "zstd"]},
            "shuffle": {"enum": ["noshuffle", "shuffle", "bitshuffle"]},
            "typesize": {"type": "integer", "minimum": 1, "maximum": 255}
          },
          "additionalProperties": false
        }
      },
      "additionalProperties": false
    },
    "gzip": {
      "type": "object",
      "required": ["name", "configuration"],
      "properties": {
        "name": {"const": "gzip"},
        "configuration": {
          "type": "object",
          "required": ["level"],
          "properties": {"level": {"type": "integer", "minimum": 0, "maximum": 9}},
          "additionalProperties": false
        }
      },
      "additionalProperties": false
    },
    "zstd": {
      "type": "object",
      "required": ["name", "configuration"],
      "properties": {
        "name": {"const": "zstd"},
        "configuration": {
          "type": "object",
          "required": ["checksum", "level"],
          "properties": {
            "checksum": {"type": "boolean"},
            "level": {"type": "integer", "minimum": -131072, "maximum": 22}
          },
          "additionalProperties": false
        }
      },
      "additionalProperties": false
    }
  }
},
  'envelope.schema.json':
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "https://ucpformat.org/schema/draft/envelope.schema.json",
  "title": "Envelope",
  "description": "The six members of every root document, whatever its version (SPEC section 7.1). Other members belong to the version.",
  "type": "object",
  "required": [
    "format",
    "format_version",
    "read_features",
    "write_features",
    "extensions",
    "annotations"
  ],
  "properties": {
    "format": {"const": "ucp"},
    "format_version": {"type": "integer"},
    "read_features": {"type": "array", "items": {"type": "string"}},
    "write_features": {"type": "array", "items": {"type": "string"}},
    "extensions": {"type": "object"},
    "annotations": {"type": "object"}
  }
},
  'index.schema.json':
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "https://ucpformat.org/schema/draft/index.schema.json",
  "title": "Index part",
  "description": "A run of atoms (SPEC section 11.1).",
  "type": "object",
  "required": ["atoms"],
  "properties": {"atoms": {"type": "array", "minItems": 1, "items": {"$ref": "atom.schema.json"}}},
  "additionalProperties": false
},
  'layout.schema.json':
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "https://ucpformat.org/schema/draft/layout.schema.json",
  "title": "Layout",
  "description": "A mesh, by its index, and the steps that spread a tensor over it (SPEC section 12). Whether steps fit the mesh is UCP-E-LAYOUT's business.",
  "type": "object",
  "required": ["mesh", "steps"],
  "properties": {
    "mesh": {"$ref": "defs.schema.json#/$defs/count"},
    "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}}
  },
  "additionalProperties": false,
  "$defs": {
    "mesh": {
      "type": "object",
      "required": ["axes"],
      "properties": {
        "axes": {
          "type": "array",
          "items": {
            "type": "object",
            "required": ["name"],
            "properties": {
              "name": {"type": "string"},
              "size": {"$ref": "#/$defs/positions"},
              "by": {
                "description": "An earlier axis; sizes has one entry for each of its positions.",
                "type": "string"
              },
              "sizes": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/positions"}}
            },
            "additionalProperties": false,
            "if": {"required": ["size"]},
            "then": {"properties": {"by": {"not": {}}, "sizes": {"not": {}}}},
            "else": {"required": ["by", "sizes"]}
          }
        },
        "ranks": {
          "description": "Ranks in row-major order of the coordinates.",
          "type": "array",
          "items": {"$ref": "defs.schema.json#/$defs/count"}
        }
      },
      "additionalProperties": false
    },
    "positions": {"type": "integer", "minimum": 1, "maximum": 9007199254740991},
    "step": {
      "type": "object",
      "required": ["kind"],
      "properties": {
        "kind": {"enum": ["view", "permute", "shard", "blocks", "join", "pad", "flatten", "only", "concat", "partial", "scale", "local"]}
      },
      "allOf": [
        {
          "if": {"type": "object", "required": ["kind"], "properties": {"kind": {"const": "view"}}},
          "then": {"$ref": "#/$defs/view"}
        },
        {
          "if": {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"const": "permute"}}
          },
          "then": {"$ref": "#/$defs/permute"}
        },
        {
          "if": {"type": "object", "required": ["kind"], "properties": {"kind": {"const": "pad"}}},
          "then": {"$ref": "#/$defs/pad"}
        },
        {
          "if": {"type": "object", "required": ["kind"], "properties": {"kind": {"const": "shard"}}},
          "then": {"$ref": "#/$defs/shard"}
        },
        {
          "if": {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"const": "blocks"}}
          },
          "then": {"$ref": "#/$defs/blocks"}
        },
        {
          "if": {"type": "object", "required": ["kind"], "properties": {"kind": {"const": "join"}}},
          "then": {"$ref": "#/$defs/join"}
        },
        {
          "if": {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"const": "flatten"}}
          },
          "then": {"$ref": "#/$defs/flatten"}
        },
        {
          "if": {"type": "object", "required": ["kind"], "properties": {"kind": {"const": "only"}}},
          "then": {"$ref": "#/$defs/only"}
        },
        {
          "if": {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"const": "concat"}}
          },
          "then": {"$ref": "#/$defs/concat"}
        },
        {
          "if": {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"const": "partial"}}
          },
          "then": {"$ref": "#/$defs/partial"}
        },
        {
          "if": {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"const": "scale"}}
          },
          "then": {"$ref": "#/$defs/scale"}
        },
        {
          "if": {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"const": "local"}}
          },
          "then": {"$ref": "#/$defs/local"}
        }
      ]
    },
    "view": {
      "type": "object",
      "required": ["kind", "shape"],
      "properties": {
        "kind": {"const": "view"},
        "shape": {"type": "array", "items": {"$ref": "defs.schema.json#/$defs/count"}}
      },
      "additionalProperties": false
    },
    "permute": {
      "type": "object",
      "required": ["kind", "order"],
      "properties": {
        "kind": {"const": "permute"},
        "order": {"type": "array", "items": {"$ref": "defs.schema.json#/$defs/count"}}
      },
      "additionalProperties": false
    },
    "pad": {
      "type": "object",
      "required": ["kind", "dim"],
      "properties": {
        "kind": {"const": "pad"},
        "dim": {"$ref": "defs.schema.json#/$defs/count"},
        "to": {"$ref": "defs.schema.json#/$defs/count"},
        "multiple": {"$ref": "#/$defs/positions"}
      },
      "additionalProperties": false,
      "if": {"required": ["to"]},
      "then": {"properties": {"multiple": {"not": {}}}},
      "else": {"required": ["multiple"]}
    },
    "shard": {
      "type": "object",
      "required": ["kind", "axis", "dim"],
      "properties": {
        "kind": {"const": "shard"},
        "axis": {"type": "string"},
        "dim": {"$ref": "defs.schema.json#/$defs/count"},
        "rule": {"enum": ["ceil", "even", "balanced"]},
        "sizes": {
          "type": "array",
          "minItems": 1,
          "items": {"$ref": "defs.schema.json#/$defs/count"}
        }
      },
      "additionalProperties": false,
      "if": {"required": ["rule"]},
      "then": {"properties": {"sizes": {"not": {}}}},
      "else": {"required": ["sizes"]}
    },
    "blocks": {
      "type": "object",
      "required": ["kind", "dim"],
      "properties": {
        "kind": {"const": "blocks"},
        "dim": {"$ref": "defs.schema.json#/$defs/count"},
        "sizes": {
          "type": "array",
          "minItems": 1,
          "items": {"$ref": "defs.schema.json#/$defs/count"}
        },
        "rule": {"enum": ["ceil", "even", "balanced"]},
        "count": {"$ref": "#/$defs/positions"},
        "steps": {
          "description": "Per block its own shards, or null for the steps that follow.",
          "type": "array",
          "items": {"type": ["array", "null"], "items": {"$ref": "#/$defs/shard"}}
        }
      },
      "additionalProperties": false,
      "if": {"required": ["sizes"]},
      "then": {"properties": {"rule": {"not": {}}, "count": {"not": {}}}},
      "else": {"required": ["rule", "count"]}
    },
    "join": {
      "type": "object",
      "required": ["kind", "dim"],
      "properties": {"kind": {"const": "join"}, "dim": {"$ref": "defs.schema.json#/$defs/count"}},
      "additionalProperties": false
    },
    "flatten": {
      "type": "object",
      "required": ["kind"],
      "properties": {"kind": {"const": "flatten"}},
      "additionalProperties": false
    },
    "only": {
      "type": "object",
      "required": ["kind", "axis", "coordinates"],
      "properties": {
        "kind": {"const": "only"},
        "axis": {"type": "string"},
        "coordinates": {
          "type": "array",
          "minItems": 1,
          "items": {"$ref": "defs.schema.json#/$defs/count"}
        }
      },
      "additionalProperties": false
    },
    "concat": {
      "type": "object",
      "required": ["kind", "group"],
      "properties": {"kind": {"const": "concat"}, "group": {"type": "string", "minLength": 1}},
      "additionalProperties": false
    },
    "partial": {
      "type": "object",
      "required": ["kind", "axis", "reduce"],
      "properties": {
        "kind": {"const": "partial"},
        "axis": {"type": "string"},
        "reduce": {"enum": ["mean", "sum", "max"]}
      },
      "additionalProperties": false
    },
    "scale": {
      "type": "object",
      "required": ["kind", "exponent"],
      "properties": {
        "kind": {"const": "scale"},
        "exponent": {"type": "integer", "minimum": -4096, "maximum": 4096}
      },
      "additionalProperties": false
    },
    "local": {
      "type": "object",
      "required": ["kind", "resize"],
      "properties": {"kind": {"const": "local"}, "resize": {"enum": ["refuse", "keep"]}},
      "additionalProperties": false
    }
  }
},
  'packs.schema.json':
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "https://ucpformat.org/schema/draft/packs.schema.json",
  "title": "Pack list",
  "description": "The packs of a checkpoint in storage packed (SPEC section 16.4).",
  "type": "object",
  "required": ["packs"],
  "properties": {"packs": {"type": "array", "items": {"$ref": "#/$defs/pack"}}},
  "additionalProperties": false,
  "$defs": {
    "pack": {
      "type": "object",
      "required": ["key", "length"],
      "properties": {
        "key": {"$ref": "defs.schema.json#/$defs/key"},
        "length": {"$ref": "defs.schema.json#/$defs/count"},
        "shared": {"const": true}
      },
      "additionalProperties": false
    }
  }
},
  'patterns.schema.json':
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "https://ucpformat.org/schema/draft/patterns.schema.json",
  "title": "Pattern document",
  "description": "Ordered rules from names to layouts (SPEC-PATTERNS). Globs and expressions are UCP-E-PATTERN's business.",
  "type": "object",
  "allOf": [{"$ref": "envelope.schema.json"}],
  "required": ["kind", "meshes", "rules"],
  "properties": {
    "format": true,
    "format_version": {"const": 0},
    "read_features": true,
    "write_features": true,
    "extensions": {"$ref": "defs.schema.json#/$defs/extensions"},
    "annotations": true,
    "kind": {"const": "patterns"},
    "description": {"type": "string"},
    "parameters": {"type": "array", "items": {"$ref": "#/$defs/parameter"}},
    "meshes": {"type": "array", "items": {"$ref": "#/$defs/mesh"}},
    "rules": {"type": "array", "items": {"$ref": "#/$defs/rule"}}
  },
  "additionalProperties": false,
  "$defs": {
    "parameter": {
      "description": "A named integer, or array of integers, that the user of the document gives.",
      "type": "object",
      "required": ["name"],
      "properties": {
        "name": {"type": "string"},
        "type": {"enum": ["integer", "integers"]},
        "default": {"$ref": "#/$defs/template"},
        "description": {"type": "string"}
      },
      "additionalProperties": false
    },
    "rule": {
      "type": "object",
      "required": ["match", "layout"],
      "properties": {
        "match": {"$ref": "#/$defs/globs"},
        "slots": {"$ref": "#/$defs/globs"},
        "layout": {"$ref": "#/$defs/layout"},
        "description": {"type": "string"}
      },
      "additionalProperties": false
    },
    "globs": {"type": ["string", "array"], "minItems": 1, "items": {"type": "string"}},
    "layout": {
      "type": ["object", "null"],
      "required": ["mesh", "steps"],
      "properties": {
        "mesh": {"$ref": "defs.schema.json#/$defs/count"},
        "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}}
      },
      "additionalProperties": false
    },
    "step": {
      "description": "A step of a layout once its expressions have their values.",
      "type": "object",
      "required": ["kind"],
      "properties": {"kind": {"type": "string"}},
      "allOf": [{"$ref": "#/$defs/template"}]
    },
    "mesh": {
      "description": "A mesh once its expressions have their values.",
      "type": "object",
      "required": ["axes"],
      "allOf": [{"$ref": "#/$defs/template"}]
    },
    "template": {
      "description": "JSON in which a string that begins with = is an expression, and an object with each an array.",
      "type": ["integer", "string", "array", "object", "null"],
      "items": {"$ref": "#/$defs/template"},
      "if": {"type": "object", "required": ["each"]},
      "then": {"$ref": "#/$defs/each"},
      "else": {"additionalProperties": {"$ref": "#/$defs/template"}}
    },
    "each": {
      "type": "object",
      "required": ["each", "below", "item"],
      "properties": {
        "each": {"type": "string"},
        "below": {"$ref": "#/$defs/template"},
        "item": {"$ref": "#/$defs/template"}
      },
      "additionalProperties": false
    }
  }
},
  'root.schema.json':
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "https://ucpformat.org/schema/draft/root.schema.json",
  "title": "Root document",
  "description": "ucp.json, whose presence is the commit (SPEC section 10).",
  "type": "object",
  "allOf": [
    {"$ref": "envelope.schema.json"},
    {
      "if": {"required": ["storage"], "properties": {"storage": {"const": "packed"}}},
      "then": {"required": ["packs"]}
    },
    {
      "if": {"required": ["storage"], "properties": {"storage": {"const": "plain"}}},
      "then": {"properties": {"packs": {"not": {}}}}
    }
  ],
  "required": ["digest", "storage", "chunk_bytes", "meshes", "layouts", "parts"],
  "properties": {
    "format": true,
    "format_version": {"const": 0},
    "read_features": true,
    "write_features": true,
    "extensions": {"$ref": "defs.schema.json#/$defs/extensions"},
    "annotations": true,
    "digest": {"$ref": "defs.schema.json#/$defs/digest"},
    "producer": {
      "type": "object",
      "required": ["name", "version"],
      "properties": {"name": {"type": "string"}, "version": {"type": "string"}},
      "additionalProperties": false
    },
    "progress": {
      "type": "object",
      "properties": {
        "step": {"$ref": "defs.schema.json#/$defs/count"},
        "log": {
          "description": "The update log and its epoch that the state belongs to (SPEC-UPDATE-LOGS section 4).",
          "type": "object",
          "required": ["id", "epoch"],
          "properties": {
            "id": {"$ref": "defs.schema.json#/$defs/log"},
            "epoch": {"$ref": "defs.schema.json#/$defs/count"}
          },
          "additionalProperties": false
        }
      },
      "additionalProperties": false
    },
    "storage": {"enum": ["plain", "packed"]},
    "chunk_bytes": {"type": "integer", "minimum": 16, "maximum": 1073741824},
    "meshes": {"type": "array", "items": {"$ref": "layout.schema.json#/$defs/mesh"}},
    "layouts": {"type": "array", "items": {"$ref": "layout.schema.json"}},
    "packs": {"$ref": "defs.schema.json#/$defs/reference"},
    "state": {"$ref": "defs.schema.json#/$defs/reference"},
    "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}}
  },
  "additionalProperties": false,
  "$defs": {
    "part": {
      "type": "object",
      "required": ["first", "last", "atoms", "index", "table"],
      "properties": {
        "first": {"$ref": "defs.schema.json#/$defs/name"},
        "last": {"$ref": "defs.schema.json#/$defs/name"},
        "atoms": {"type": "integer", "minimum": 1, "maximum": 9007199254740991},
        "index": {"$ref": "defs.schema.json#/$defs/reference"},
        "table": {"$ref": "defs.schema.json#/$defs/reference"}
      },
      "additionalProperties": false
    }
  }
},
  'state.schema.json':
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "https://ucpformat.org/schema/draft/state.schema.json",
  "title": "State document",
  "description": "What is not a tensor (SPEC section 15).",
  "type": "object",
  "required": ["values", "optimizers", "blobs"],
  "properties": {
    "values": {"type": "object", "additionalProperties": {"$ref": "value.schema.json"}},
    "optimizers": {"type": "object", "additionalProperties": {"$ref": "#/$defs/optimizer"}},
    "blobs": {"type": "object", "additionalProperties": {"$ref": "#/$defs/blob"}},
    "pipeline": {"$ref": "#/$defs/pipeline"},
    "images": {"type": "object", "additionalProperties": {"$ref": "#/$defs/image"}},
    "annotations": {"$ref": "defs.schema.json#/$defs/annotations"}
  },
  "additionalProperties": false,
  "$defs": {
    "optimizer": {
      "type": "object",
      "required": ["groups"],
      "properties": {"groups": {"type": "array", "items": {"$ref": "#/$defs/group"}}},
      "additionalProperties": false
    },
    "group": {
      "type": "object",
      "required": ["atoms", "options"],
      "properties": {
        "atoms": {"type": "array", "items": {"$ref": "defs.schema.json#/$defs/name"}},
        "options": {"type": "object", "additionalProperties": {"$ref": "value.schema.json"}}
      },
      "additionalProperties": false
    },
    "pipeline": {
      "type": "object",
      "required": ["axis", "stages"],
      "properties": {
        "axis": {"type": "string", "minLength": 1},
        "stages": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/stage"}}
      },
      "additionalProperties": false
    },
    "stage": {
      "type": "object",
      "required": ["updates", "atoms", "in_flight"],
      "properties": {
        "updates": {"$ref": "defs.schema.json#/$defs/count"},
        "atoms": {"type": "array", "items": {"$ref": "defs.schema.json#/$defs/name"}},
        "in_flight": {"type": "array", "items": {"$ref": "#/$defs/minibatch"}}
      },
      "additionalProperties": false
    },
    "minibatch": {
      "type": "object",
      "required": ["minibatch", "version"],
      "properties": {
        "minibatch": {"$ref": "defs.schema.json#/$defs/count"},
        "version": {"$ref": "defs.schema.json#/$defs/count"}
      },
      "additionalProperties": false
    },
    "image": {
      "type": "object",
      "required": ["media_type", "producer", "host", "portable", "required", "files"],
      "properties": {
        "media_type": {"type": "string"},
        "producer": {
          "type": "object",
          "required": ["name", "version"],
          "properties": {"name": {"type": "string"}, "version": {"type": "string"}},
          "additionalProperties": false
        },
        "host": {"type": "object", "additionalProperties": {"type": "string"}},
        "portable": {"const": false},
        "required": {"type": "boolean"},
        "rank": {"$ref": "defs.schema.json#/$defs/count"},
        "files": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/imageFile"}}
      },
      "additionalProperties": false
    },
    "imageFile": {
      "type": "object",
      "required": ["path", "object"],
      "properties": {
        "path": {"type": "string"},
        "executable": {"const": true},
        "object": {"$ref": "defs.schema.json#/$defs/reference"}
      },
      "additionalProperties": false
    },
    "blob": {
      "type": "object",
      "required": ["media_type", "object"],
      "properties": {
        "media_type": {"type": "string"},
        "object": {"$ref": "defs.schema.json#/$defs/reference"}
      },
      "additionalProperties": false
    }
  }
},
  'update-log.schema.json':
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "https://ucpformat.org/schema/draft/update-log.schema.json",
  "title": "Log document",
  "description": "What an update log is named by (SPEC-UPDATE-LOGS section 2).",
  "type": "object",
  "allOf": [
    {
      "$ref": "envelope.schema.json"
    }
  ],
  "required": [
    "kind",
    "id"
  ],
  "properties": {
    "format": true,
    "format_version": {
      "const": 0
    },
    "read_features": true,
    "write_features": true,
    "extensions": {
      "$ref": "defs.schema.json#/$defs/extensions"
    },
    "annotations": true,
    "kind": {
      "const": "update-log"
    },
    "id": {
      "$ref": "defs.schema.json#/$defs/log"
    }
  },
  "additionalProperties": false
},
  'update-log-batch.schema.json':
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "https://ucpformat.org/schema/draft/update-log-batch.schema.json",
  "title": "Header of a batch",
  "description": "Steps that one rank of a job has logged; their bytes follow the header (SPEC-UPDATE-LOGS section 3).",
  "type": "object",
  "required": [
    "log",
    "epoch",
    "rank",
    "first_step",
    "previous",
    "steps",
    "values"
  ],
  "properties": {
    "log": {
      "$ref": "defs.schema.json#/$defs/log"
    },
    "epoch": {
      "$ref": "defs.schema.json#/$defs/count"
    },
    "rank": {
      "$ref": "defs.schema.json#/$defs/count"
    },
    "first_step": {
      "$ref": "defs.schema.json#/$defs/count"
    },
    "previous": {
      "$ref": "defs.schema.json#/$defs/digest"
    },
    "steps": {
      "type": "array",
      "minItems": 1,
      "items": {
        "$ref": "#/$defs/step"
      }
    },
    "options": {
      "$ref": "#/$defs/options"
    },
    "values": {
      "type": "object",
      "additionalProperties": {
        "$ref": "value.schema.json"
      }
    },
    "sums": {
      "type": "array",
      "items": {
        "$ref": "#/$defs/sum"
      }
    }
  },
  "additionalProperties": false,
  "$defs": {
    "step": {
      "type": "object",
      "required": [
        "length",
        "checksum",
        "entries"
      ],
      "properties": {
        "options": {
          "$ref": "#/$defs/options"
        },
        "skipped": {
          "const": true
        },
        "length": {
          "$ref": "defs.schema.json#/$defs/count"
        },
        "checksum": {
          "type": "integer",
          "minimum": 0,
          "maximum": 4294967295
        },
        "entries": {
          "type": "array",
          "items": {
            "$ref": "#/$defs/entry"
          }
        }
      },
      "additionalProperties": false
    },
    "entry": {
      "type": "object",
      "required": [
        "piece",
        "form"
      ],
      "properties": {
        "piece": {
          "$ref": "defs.schema.json#/$defs/count"
        },
        "form": {
          "enum": [
            "dense",
            "rows",
            "sparse"
          ]
        },
        "count": {
          "$ref": "defs.schema.json#/$defs/count"
        }
      },
      "if": {
        "type": "object",
        "required": [
          "form"
        ],
        "properties": {
          "form": {
            "const": "dense"
          }
        }
      },
      "then": {
        "not": {
          "required": [
            "count"
          ]
        }
      },
      "else": {
        "required": [
          "count"
        ]
      },
      "additionalProperties": false
    },
    "sum": {
      "type": "object",
      "required": [
        "tensor",
        "slot",
        "sum"
      ],
      "properties": {
        "tensor": {
          "$ref": "defs.schema.json#/$defs/count"
        },
        "slot": {
          "type": "string",
          "minLength": 1
        },
        "sum": {
          "type": "string",
          "pattern": "^[0-9a-f]{16}$",
          "maxLength": 16
        }
      },
      "additionalProperties": false
    },
    "options": {
      "type": "array",
      "items": {
        "type": "object",
        "additionalProperties": {
          "$ref": "value.schema.json"
        }
      }
    }
  }
},
  'update-log-epoch.schema.json':
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "https://ucpformat.org/schema/draft/update-log-epoch.schema.json",
  "title": "Epoch document",
  "description": "A stretch of steps of an update log: its ranks, tensors and pieces (SPEC-UPDATE-LOGS section 2).",
  "type": "object",
  "allOf": [
    {
      "$ref": "envelope.schema.json"
    }
  ],
  "required": [
    "kind",
    "log",
    "epoch",
    "start",
    "first_step",
    "after",
    "ranks",
    "tensors",
    "pieces",
    "groups",
    "optimizer",
    "exactness"
  ],
  "properties": {
    "format": true,
    "format_version": {
      "const": 0
    },
    "read_features": true,
    "write_features": true,
    "extensions": {
      "$ref": "defs.schema.json#/$defs/extensions"
    },
    "annotations": true,
    "kind": {
      "const": "update-log-epoch"
    },
    "log": {
      "$ref": "defs.schema.json#/$defs/log"
    },
    "epoch": {
      "$ref": "defs.schema.json#/$defs/count"
    },
    "start": {
      "$ref": "defs.schema.json#/$defs/log"
    },
    "first_step": {
      "$ref": "defs.schema.json#/$defs/count"
    },
    "after": {
      "$ref": "#/$defs/after"
    },
    "ranks": {
      "type": "integer",
      "minimum": 1,
      "maximum": 1048576
    },
    "tensors": {
      "type": "array",
      "items": {
        "$ref": "#/$defs/tensor"
      }
    },
    "pieces": {
      "type": "array",
      "items": {
        "$ref": "#/$defs/piece"
      }
    },
    "groups": {
      "type": "array",
      "items": {
        "type": "array",
        "items": {
          "$ref": "defs.schema.json#/$defs/count"
        }
      }
    },
    "optimizer": {
      "$ref": "#/$defs/optimizer"
    },
    "exactness": {
      "enum": [
        "bitwise",
        "tolerance",
        "lossy"
      ]
    }
  },
  "additionalProperties": false,
  "$defs": {
    "after": {
      "type": [
        "object",
        "null"
      ],
      "required": [
        "epoch",
        "digest"
      ],
      "properties": {
        "epoch": {
          "$ref": "defs.schema.json#/$defs/count"
        },
        "digest": {
          "$ref": "defs.schema.json#/$defs/digest"
        }
      },
      "additionalProperties": false
    },
    "tensor": {
      "type": "object",
      "required": [
        "atom",
        "role",
        "dtype",
        "shape"
      ],
      "properties": {
        "atom": {
          "$ref": "defs.schema.json#/$defs/name"
        },
        "role": {
          "enum": [
            "gradient",
            "residual",
            "value"
          ]
        },
        "dtype": {
          "description": "Its name is UCP-E-DTYPE's business.",
          "type": "string"
        },
        "shape": {
          "$ref": "defs.schema.json#/$defs/shape"
        }
      },
      "additionalProperties": false
    },
    "piece": {
      "type": "object",
      "required": [
        "tensor",
        "rank",
        "offset",
        "shape"
      ],
      "properties": {
        "tensor": {
          "$ref": "defs.schema.json#/$defs/count"
        },
        "rank": {
          "$ref": "defs.schema.json#/$defs/count"
        },
        "offset": {
          "$ref": "defs.schema.json#/$defs/shape"
        },
        "shape": {
          "$ref": "defs.schema.json#/$defs/shape"
        }
      },
      "additionalProperties": false
    },
    "optimizer": {
      "type": "object",
      "required": [
        "type",
        "profile"
      ],
      "properties": {
        "type": {
          "type": "string",
          "minLength": 1
        },
        "profile": {
          "type": "object",
          "additionalProperties": {
            "type": "string"
          }
        }
      },
      "additionalProperties": false
    }
  }
},
  'value.schema.json':
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "https://ucpformat.org/schema/draft/value.schema.json",
  "title": "Tagged value",
  "description": "Training state that is not a tensor (SPEC section 15.1). Not said here, and checked by whoever decodes: nesting of at most 56 levels; that the text of a $float is the shortest of its number; order and distinctness of keys; that dtype, shape and data of an array fit, with unused bits zero; the content of defined types. `not` a newline stands beside patterns because `$` lets one pass in some engines.",
  "anyOf": [
    {"$ref": "#/$defs/scalar"},
    {"type": "array", "items": {"$ref": "#"}},
    {
      "description": "A dictionary from strings. Under a condition, so that what a tag holds is looked at once and not again as a member of a dictionary.",
      "type": "object",
      "propertyNames": {"pattern": "^([^$]|$)"},
      "if": {"propertyNames": {"pattern": "^([^$]|$)"}},
      "then": {"additionalProperties": {"$ref": "#"}}
    },
    {"$ref": "#/$defs/tuple"},
    {"$ref": "#/$defs/set"},
    {"$ref": "#/$defs/frozenset"},
    {"$ref": "#/$defs/dict"},
    {"$ref": "#/$defs/array"},
    {"$ref": "#/$defs/tensor"},
    {"$ref": "#/$defs/object"}
  ],
  "$defs": {
    "scalar": {
      "anyOf": [
        {"type": ["null", "boolean", "string"]},
        {
          "type": "integer",
          "minimum": -9007199254740991,
          "maximum": 9007199254740991
        },
        {"$ref": "#/$defs/fraction"},
        {"$ref": "#/$defs/float"},
        {"$ref": "#/$defs/int"},
        {"$ref": "#/$defs/bytes"},
        {"$ref": "#/$defs/complex"}
      ]
    },
    "fraction": {
      "description": "A finite number that is not integral.",
      "type": "number",
      "not": {"type": "integer"}
    },
    "float": {
      "description": "A float that is integral, not finite, or negative zero.",
      "type": "object",
      "required": ["$float"],
      "additionalProperties": false,
      "properties": {
        "$float": {
          "type": "string",
          "pattern": "^(nan|-?inf|-?0\\.0|-?[1-9][0-9]{0,15}\\.0|-?[1-9](\\.[0-9]{0,15}[1-9])?e\\+(1[6-9]|[2-9][0-9]|[12][0-9][0-9]|30[0-8]))$",
          "not": {"pattern": "\\n"}
        }
      }
    },
    "int": {
      "description": "An integer of magnitude above 2^53-1, at most 4096 digits.",
      "type": "object",
      "required": ["$int"],
      "additionalProperties": false,
      "properties": {
        "$int": {
          "type": "string",
          "anyOf": [
            {
              "pattern": "^(9[1-9][0-9]{14}|90[1-9][0-9]{13}|900[8-9][0-9]{12}|9007[2-9][0-9]{11}|9007199[3-9][0-9]{8}|90071992[6-9][0-9]{7}|900719925[5-9][0-9]{6}|9007199254[8-9][0-9]{5}|90071992547[5-9][0-9]{4}|900719925474[1-9][0-9]{3}|900719925474099[2-9]|[1-9][0-9]{16,})$",
              "maxLength": 4096
            },
            {
              "pattern": "^-(9[1-9][0-9]{14}|90[1-9][0-9]{13}|900[8-9][0-9]{12}|9007[2-9][0-9]{11}|9007199[3-9][0-9]{8}|90071992[6-9][0-9]{7}|900719925[5-9][0-9]{6}|9007199254[8-9][0-9]{5}|90071992547[5-9][0-9]{4}|900719925474[1-9][0-9]{3}|900719925474099[2-9]|[1-9][0-9]{16,})$",
              "maxLength": 4097
            }
          ],
          "not": {"pattern": "\\n"}
        }
      }
    },
    "bytes": {
      "description": "Bytes.",
      "type": "object",
      "required": ["$bytes"],
      "additionalProperties": false,
      "properties": {"$bytes": {"$ref": "#/$defs/base64"}}
    },
    "complex": {
      "description": "Real and imaginary part.",
      "type": "object",
      "required": ["$complex"],
      "additionalProperties": false,
      "properties": {
        "$complex": {
          "type": "array",
          "minItems": 2,
          "maxItems": 2,
          "items": {
            "anyOf": [
              {
                "$ref": "#/$defs/fraction"
              },
              {"$ref": "#/$defs/float"}
            ]
          }
        }
      }
    },
    "tuple": {
      "description": "An immutable list.",
      "type": "object",
      "required": ["$tuple"],
      "additionalProperties": false,
      "properties": {"$tuple": {"type": "array", "items": {"$ref": "#"}}}
    },
    "set": {
      "description": "A set, its elements ordered by their RFC 8785 text.",
      "type": "object",
      "required": ["$set"],
      "additionalProperties": false,
      "properties": {
        "$set": {
          "type": "array",
          "items": {"$ref": "#/$defs/key"}
        }
      }
    },
    "frozenset": {
      "description": "An immutable set, its elements ordered by their RFC 8785 text.",
      "type": "object",
      "required": ["$frozenset"],
      "additionalProperties": false,
      "properties": {
        "$frozenset": {
          "type": "array",
          "items": {"$ref": "#/$defs/key"}
        }
      }
    },
    "dict": {
      "description": "A dictionary in order, some key of which is not a string or starts with $.",
      "type": "object",
      "required": ["$dict"],
      "additionalProperties": false,
      "properties": {
        "$dict": {
          "type": "array",
          "items": {
            "type": "array",
            "minItems": 2,
            "maxItems": 2,
            "prefixItems": [
              {"$ref": "#/$defs/key"},
              {"$ref": "#"}
            ]
          },
          "contains": {
            "type": "array",
            "prefixItems": [
              {
                "not": {
                  "type": "string",
                  "pattern": "^([^$]|$)"
                }
              }
            ]
          }
        }
      }
    },
    "array": {
      "description": "An n-dimensional array.",
      "type": "object",
      "required": ["$array"],
      "additionalProperties": false,
      "properties": {"$array": {"$ref": "#/$defs/body"}}
    },
    "tensor": {
      "description": "A tensor of the framework that wrote it.",
      "type": "object",
      "required": ["$tensor"],
      "additionalProperties": false,
      "properties": {"$tensor": {"$ref": "#/$defs/body"}}
    },
    "object": {
      "description": "An object of a named type with plain content.",
      "type": "object",
      "required": ["$object"],
      "additionalProperties": false,
      "properties": {
        "$object": {
          "type": "object",
          "required": ["type", "value"],
          "additionalProperties": false,
          "properties": {
            "type": {
              "$ref": "#/$defs/typeName"
            },
            "value": {"$ref": "#"}
          }
        }
      }
    },
    "key": {
      "description": "An element of a set, or a key of a $dict.",
      "anyOf": [
        {"$ref": "#/$defs/scalar"},
        {
          "description": "A tuple of keys.",
          "type": "object",
          "required": ["$tuple"],
          "additionalProperties": false,
          "properties": {
            "$tuple": {
              "type": "array",
              "items": {"$ref": "#/$defs/key"}
            }
          }
        },
        {"$ref": "#/$defs/frozenset"},
        {
          "description": "An object whose content is a key.",
          "type": "object",
          "required": ["$object"],
          "additionalProperties": false,
          "properties": {
            "$object": {
              "type": "object",
              "required": ["type", "value"],
              "additionalProperties": false,
              "properties": {
                "type": {
                  "$ref": "#/$defs/typeName"
                },
                "value": {
                  "$ref": "#/$defs/key"
                }
              }
            }
          }
        }
      ]
    },
    "typeName": {
      "type": "string",
      "pattern": "^[A-Za-z_][A-Za-z0-9_]*(\\.[A-Za-z_][A-Za-z0-9_]*)*$",
      "maxLength": 200,
      "not": {"pattern": "\\n"}
    },
    "base64": {
      "description": "RFC 4648 section 4 with padding, unused bits zero.",
      "type": "string",
      "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
      "not": {"pattern": "\\n"}
    },
    "body": {
      "description": "Data type, extents, and the elements in row-major order, little-endian.",
      "type": "object",
      "required": ["dtype", "shape", "data"],
      "additionalProperties": false,
      "properties": {
        "dtype": {"type": "string"},
        "shape": {
          "type": "array",
          "maxItems": 32,
          "items": {
            "type": "integer",
            "minimum": 0,
            "maximum": 9007199254740991
          }
        },
        "data": {"$ref": "#/$defs/base64"}
      }
    }
  }
},
};
