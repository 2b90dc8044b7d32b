// The dataset as the page holds it: one typed array a column. The packing is described in packing.py.

const ARRAYS = { uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, float32: Float32Array, float64: Float64Array };

export function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// From the page's base64 to a Dataset.
export async function unpack(base64) {
  const packed = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(packed).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  return new Dataset(header, buffer, Math.ceil((4 + length) / 8) * 8);
}

export class Dataset {
  constructor(header, buffer, start) {
    this.header = header;
    this.size = header.rows;
    this.axes = header.axes;
    this.columns = new Map();
    for (const [name, column] of Object.entries(header.columns)) {
      const data = new ARRAYS[column.array](buffer, start + column.offset, header.rows);
      const values = column.kind === "codes" ? Array.from({ length: column.count }, (_, code) => code) : column.values;
      this.columns.set(name, { ...column, values, data });
    }
    // The rankings of problems and of workloads.
    this.answers = new Map(Object.entries(header.tables ?? {}).map(([name, table]) => [name, new Dataset(table, buffer, start)]));
  }

  has(name) {
    return this.columns.has(name);
  }

  // What a column means, for a tooltip; null for what is no column.
  about(name) {
    return this.columns.get(name)?.about ?? null;
  }

  // The distinct values of a column of words, in order.
  values(name) {
    return this.columns.get(name)?.values ?? [null];
  }

  // One code a row: the index of its value among `values`.
  codes(name) {
    return this.columns.get(name)?.data ?? new Uint8Array(this.size);
  }

  // A row's value: a word, a number, a time in ISO 8601, or null where the row or the whole dataset has none.
  value(name, row) {
    const column = this.columns.get(name);
    if (!column) return null;
    if (column.kind === "codes") return column.data[row];
    if (column.kind === "words") {
      const word = column.values[column.data[row]];
      return ["command", "again"].includes(name) && word !== null ? word.replaceAll("\0", this.value("point_id", row)) : word;
    }
    const number = column.data[row];
    if (Number.isNaN(number)) return null;
    return column.kind === "time" ? new Date(number * 1000).toISOString() : number;
  }

  // The rows in order. Whoever sorts or keeps them makes a copy, as `filter` does.
  everyRow() {
    this.rows ??= Uint32Array.from({ length: this.size }, (_, row) => row);
    return this.rows;
  }
}
