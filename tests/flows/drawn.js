// What the browser has drawn, as JSON in a `pre` with the id "drawn": every box in pixels of the page, [left, top, right, bottom].
const box = e => { const r = e.getBoundingClientRect(); return [r.left + scrollX, r.top + scrollY, r.right + scrollX, r.bottom + scrollY] };
const words = (within, selector) => [...within.querySelectorAll(selector)]
  .filter(e => e.textContent.trim() && getComputedStyle(e).visibility !== 'hidden' && e.getBoundingClientRect().width)
  .map(e => ({text: e.textContent, box: box(e)}));

function marks(graph, data) {
  const layer = graph.querySelector(`.scatterlayer .trace${data.uid}`);
  return {
    name: data.name,
    subplot: data.xaxis + data.yaxis,
    points: [...layer.querySelectorAll('.point')].map(e => ({box: box(e), fill: getComputedStyle(e).fill})),
    intervals: layer.querySelectorAll('.yerror').length,
  };
}

function hovered(graph, data, index) {
  Plotly.Fx.hover(graph, [{curveNumber: index, pointNumber: data.x.length - 1}], data.xaxis + data.yaxis);
  return words(graph, '.hoverlayer .hovertext');
}

function drawn(graph) {
  return {
    box: box(graph.querySelector('.main-svg')),
    panels: [...graph.querySelectorAll('.draglayer .nsewdrag')].map(e => ({subplot: e.dataset.subplot, box: box(e)})),
    words: words(graph, '.main-svg text'),
    titles: words(graph, '[class*="title"] text, text[class*="title"]').map(found => found.text),
    headings: words(graph, '.annotation-text').map(found => found.text),
    legend: words(graph, '.legendtext').map(found => found.text),
    traces: graph._fullData.map(data => marks(graph, data)),
    hovers: graph._fullData.map((data, index) => hovered(graph, data, index)),
  };
}

addEventListener('load', () => setTimeout(() => {
  const found = {
    graphs: [...document.querySelectorAll('.plotly-graph-div')].map(drawn),
    loaded: performance.getEntriesByType('resource').map(entry => entry.name),
    wider: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  };
  const shown = document.createElement('pre');
  shown.id = 'drawn';
  shown.textContent = JSON.stringify(found);
  document.body.append(shown);
}, 1000));
