export { axisBottom, axisLeft } from "d3-axis";
export { scaleLinear, scaleLog } from "d3-scale";
export { select } from "d3-selection";
export { area, curveStepAfter, line } from "d3-shape";
export { zoom, zoomIdentity } from "d3-zoom";
